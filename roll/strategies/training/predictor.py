"""What a model says of tokens, as one module."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.strategies.base import Prediction
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
        self.model = model
        self.predicts = predicts
        self.temperature = temperature
        self.packed = packed
        self.shared = shared
        self.chunk_size = chunk_size
        self.sequence_ranks: SequenceRanks | None = None
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
    ) -> TokenOutputs:
        """Return predictions and, of a policy, entropies and divergences if asked, ``[batch, sequence]`` each.

        With ``probe``, return hidden states ``[n, hidden]`` instead, of rows in that layout.
        """
        if probe is not None:
            packing, ranks = lengths if probe.packed else None, self.sequence_ranks if probe.spread else None
            hidden = flat_hidden(
                self.model.base_model, input_ids, packing, ranks, shared=probe.shared, read=response_mask
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
        )
