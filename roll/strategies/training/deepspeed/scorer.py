"""Scoring through a DeepSpeed engine: the passes of a scorer, which all ranks make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.strategies.base import Prediction
from roll.strategies.training.comparing import compared_columns
from roll.strategies.training.deepspeed.predictor import StackedPredictor, whole_head
from roll.strategies.training.packing import prepare_packing
from roll.strategies.training.predictor import Predictor
from roll.strategies.training.pytorch.scoring import Pass, Scorer, no_response
from roll.strategies.training.ranks import Ranks


class EngineScorer(Scorer):
    """A scorer whose forward passes go through a DeepSpeed engine; otherwise see :class:`Scorer`.

    Every method is to be called on every rank, with a share of the batch that may be empty.

    Args:
        model: The Hugging Face model.
        start: Makes the engine around the module that computes predictions.
        predicts: See :class:`Scorer`.
        temperature: See :class:`Scorer`.
        max_tokens_per_microbatch: See :class:`Scorer`.
        max_samples_per_microbatch: See :class:`Scorer`.
        max_samples_per_scoring: See :class:`Scorer`.
        use_sequence_packing: See :class:`Scorer`.
        share_prefixes: See :class:`Scorer`.
        log_prob_chunk_size: See :class:`Scorer`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        start: Callable[[nn.Module], Any],
        *,
        predicts: Prediction = "log_probs",
        temperature: float = 1.0,
        max_tokens_per_microbatch: int | None = 8192,
        max_samples_per_microbatch: int | None = None,
        max_samples_per_scoring: int | None = None,
        mixed_precision: bool = False,
        use_sequence_packing: bool = False,
        share_prefixes: bool = False,
        log_prob_chunk_size: int | None = None,
    ) -> None:
        super().__init__(
            model,
            predicts=predicts,
            temperature=temperature,
            max_tokens_per_microbatch=max_tokens_per_microbatch,
            max_samples_per_microbatch=max_samples_per_microbatch,
            max_samples_per_scoring=max_samples_per_scoring,
            mixed_precision=mixed_precision,
            log_prob_chunk_size=log_prob_chunk_size,
        )
        use_sequence_packing = use_sequence_packing or share_prefixes
        if use_sequence_packing:
            prepare_packing(model, shared=share_prefixes)
        self._inner = StackedPredictor(
            model,
            predicts=predicts,
            temperature=temperature,
            packed=use_sequence_packing,
            chunk_size=log_prob_chunk_size,
            shared=share_prefixes,
        )
        self.engine = start(self._inner)
        self._inner.prepare()
        # The engine is called in place of the module: it prepares each pass before it hands it on.
        self.predictor = cast(Predictor, self.engine)
        self.device = torch.device(self.engine.device)
        self.ranks = Ranks()
        # That ranks compute together is all that a scorer needs to know of how the model is spread over them.
        self.shards = cast(Any, _Together(self.engine))
        if use_sequence_packing:
            # Only now: weights that are shared out cannot be computed with before there is an engine.
            self._check_layout()

    @property
    def handed_over(self) -> bool:
        """Whether the weights have been handed over, so that nothing can be computed."""
        return self._handed_over

    @handed_over.setter
    def handed_over(self, value: bool) -> None:
        self._handed_over = value

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Let batches say what their ``divergence`` is measured from (:mod:`roll.strategies.training.comparing`)."""
        self._inner.comparison.measure_from(*map(whole_head, heads), divergence=divergence)

    def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the hidden states before each token of the mask, ``[batch, sequence, hidden]``, 0 elsewhere."""
        states = super().compute_states(batch)
        cast(_Together, self.shards).reshard()
        return states

    def forward(self, micro: TensorDict, *, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Return the predictions for a micro-batch, and the entropies if asked of a policy, ``[batch, sequence]`` each.

        Where the batch says what to compare with, ``divergence`` of the micro-batch becomes that of these predictions.
        """
        compared = compared_columns(micro)
        found = self.engine(
            micro["input_ids"], micro["response_mask"], micro["lengths"], with_entropy, compared=compared
        )
        if compared is not None and self.predicts == "log_probs":
            micro["divergence"] = found[-1]
        return found[0], found[1] if with_entropy and self.predicts == "log_probs" else None

    def empty_pass(self) -> Pass:
        """Return a pass without rows, which has a gradient of zeros."""
        return Pass(torch.empty(0, dtype=torch.int64), no_response(self.device), True)


class _Together:
    """The part of ``roll.strategies.training.pytorch.sharding.Shards`` that a scorer uses."""

    offloaded = True

    def __init__(self, engine: Any) -> None:
        # Only stage 3 gathers anything.
        self._release = getattr(engine.optimizer, "empty_partition_cache", None)

    def reshard(self) -> None:
        """Drop gathered weights, also those that DeepSpeed has gathered for a pass that does not come."""
        if self._release is not None:
            self._release()
