"""What a model says of tokens, as one module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.generation.pictures import Picture
from roll.strategies.attention_kernels import without_plans_for_each_shape
from roll.strategies.base import Prediction
from roll.strategies.pictures import PictureEncoder, ShownTokens
from roll.strategies.training.comparing import Comparison
from roll.strategies.training.log_probs import TokenOutputs, forward_log_probs
from roll.strategies.training.packing import flat_hidden
from roll.strategies.training.ulysses import SequenceRanks
from roll.strategies.training.values import forward_values


class Layout(NamedTuple):
    """How the rows of a forward pass are laid out.

    Attributes:
        packed: End to end instead of padded.
        spread: A part of each on every rank that shares them.
        shared: Equal beginnings of packed rows once.
    """

    packed: bool
    spread: bool
    shared: bool = False


class Predictor(nn.Module):
    """What a model says of tokens, as one module: what is called as a whole can be sharded as a whole.

    Args:
        model: A causal language model or a critic.
        predicts: ``log_probs`` of a language model, or ``values`` of a critic.
        temperature: Logits are divided by it, so that log-probs are those of the distribution sampled from.
        packed: Lay the sequences of a micro-batch end to end instead of padding them.
        chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
        shared: Compute equal beginnings of packed sequences once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        predicts: Prediction,
        temperature: float,
        packed: bool,
        chunk_size: int | None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        without_plans_for_each_shape()
        self.model = model
        self.predicts = predicts
        self.temperature = temperature
        self.packed = packed
        self.shared = shared
        self.chunk_size = chunk_size
        self.sequence_ranks: SequenceRanks | None = None
        self.shares_weights = False
        # No module, for it is not part of what is trained, moved or sharded here.
        self.comparison = Comparison(temperature)

    def forward(
        self,
        input_ids: Tensor,
        response_mask: Tensor,
        lengths: Tensor,
        with_entropy: bool,
        probe: Layout | None = None,
        compared: dict[str, Tensor] | None = None,
        pictures: Sequence[Sequence[Picture]] | None = None,
    ) -> TokenOutputs:
        """Return predictions and, of a policy, entropies and divergences if asked, ``[batch, sequence]`` each.

        With ``probe``, return hidden states ``[n, hidden]`` instead, of rows in that layout. ``pictures`` are those of
        each row, where a batch has any.
        """
        shown = None if pictures is None else self._shown(input_ids, pictures)
        if probe is not None:
            packing, ranks = lengths if probe.packed else None, self.sequence_ranks if probe.spread else None
            decoder = self.model.base_model if shown is None else self.model.get_decoder()
            hidden = flat_hidden(
                decoder, input_ids, packing, ranks, shared=probe.shared, read=response_mask, shown=shown
            )
            return TokenOutputs(hidden.all_before(response_mask), None)
        packing, ranks = lengths if self.packed else None, self.sequence_ranks
        if self.predicts == "values":
            values = forward_values(
                self.model, input_ids, response_mask, lengths=packing, ranks=ranks, shared=self.shared
            )
            return TokenOutputs(values, None)
        return forward_log_probs(
            self.model,
            input_ids,
            response_mask,
            temperature=self.temperature,
            with_entropy=with_entropy,
            lengths=packing,
            chunk_size=self.chunk_size,
            reference=self.comparison.reference(compared),
            ranks=ranks,
            shared=self.shared,
            shown=shown,
        )

    @cached_property
    def _encoder(self) -> PictureEncoder:
        return PictureEncoder(self.model)

    def _shown(self, input_ids: Tensor, pictures: Sequence[Sequence[Picture]]) -> ShownTokens:
        """Return what the decoder takes in place of tokens.

        Raises:
            ValueError: The model sees no pictures, or its rows are spread over ranks.
        """
        if self.sequence_ranks is not None:
            raise ValueError("Rows with pictures are computed whole, by one rank: set ulysses_size to 1.")
        return self._encoder.shown(input_ids, pictures, join_in=self.shares_weights)
