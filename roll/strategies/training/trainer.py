"""What train strategies have in common: their options, scoring with the model that is trained, sums of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn

from roll.strategies.base import EXTREMES, Loss

LARGEST, SMALLEST = EXTREMES


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How the optimiser steps.

    Attributes:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Decoupled weight decay on matrices; vectors (norms, biases) are not decayed.
        l2: Adds ``l2 / 2 * sum(w^2)`` of the matrices to the loss. Unlike weight decay, its gradient is clipped and
            scaled by the optimiser like any other.
        betas: AdamW moments.
        epsilon: AdamW epsilon.
        max_grad_norm: Global gradient norm is clipped to this; 0 switches clipping off.
        lr_scheduler_type: A schedule name of ``transformers.get_scheduler``.
        warmup_steps: Optimiser steps of linear warm-up.
        total_steps: Optimiser steps of the whole run; the schedule advances once per optimiser step.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        max_samples_per_scoring: The same where nothing is trained; ``None`` takes ``max_samples_per_microbatch``.
        mixed_precision: Compute in bf16, with fp32 weights and optimiser states.
        gradient_checkpointing: Recompute activations in the backward pass.
        temperature: The sampling temperature; log-probs are those of the tempered distribution. Critics have none.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them; changes no number.
        log_prob_chunk_size: Most tokens whose logits are held at once, the rest being computed again in the backward
            pass; ``None`` chooses by vocabulary.
    """

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    l2: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant_with_warmup"
    warmup_steps: int = 0
    total_steps: int = 1
    max_tokens_per_microbatch: int | None = 8192
    max_samples_per_microbatch: int | None = None
    max_samples_per_scoring: int | None = None
    mixed_precision: bool = False
    gradient_checkpointing: bool = False
    temperature: float = 1.0
    use_sequence_packing: bool = False
    log_prob_chunk_size: int | None = None

    def for_scoring(self) -> dict[str, Any]:
        """Return what a scorer of the same model is told."""
        return {
            "temperature": self.temperature,
            "max_tokens_per_microbatch": self.max_tokens_per_microbatch,
            "max_samples_per_microbatch": self.max_samples_per_microbatch,
            "max_samples_per_scoring": self.max_samples_per_scoring,
            "mixed_precision": self.mixed_precision,
            "use_sequence_packing": self.use_sequence_packing,
            "log_prob_chunk_size": self.log_prob_chunk_size,
        }


class ScoringTrainer:
    """A train strategy that scores batches with a scorer around the model that it trains.

    A subclass sets ``_scorer`` (:class:`roll.strategies.training.pytorch.scoring.Scorer`, or one with its interface).
    """

    _scorer: Any

    @property
    def data_rank(self) -> int:
        """Which share of a batch this rank computes, below :attr:`data_size`."""
        return int(self._scorer.data_rank)

    @property
    def data_size(self) -> int:
        """Into how many shares a batch is dealt; ranks with the same :attr:`data_rank` get the same rows."""
        return int(self._scorer.data_size)

    @property
    def speaks(self) -> bool:
        """Whether this rank's outputs count: true on one of the ranks that share rows, and all of them have them."""
        return bool(self._scorer.speaks)

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t) under the current weights, ``[batch, sequence]``, 0 outside the mask."""
        return self._score("compute_log_probs", batch)

    def compute_values(self, batch: TensorDict) -> Tensor:
        """Return the value of the state before token t under the current weights, ``[batch, sequence]``, 0 outside."""
        return self._score("compute_values", batch)

    def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return the divergence from the reference over the whole vocabulary, ``[batch, sequence]``, 0 outside."""
        return self._score("compute_divergence", batch)

    def measure_from(self, head: nn.Module) -> None:
        """Let batches with ``ref_states`` have a ``divergence`` from the reference that has this head."""
        self._scorer.measure_from(head)

    @property
    def offloaded(self) -> bool:
        """Whether weights or optimiser states are handed over, so that no step can be taken."""
        raise NotImplementedError

    def _prepare_scoring(self) -> None:
        """Switch dropout off, where the scorer does not."""

    def _score(self, method: str, batch: TensorDict) -> Tensor:
        self._prepare_scoring()
        scores: Tensor = getattr(self._scorer, method)(batch)
        return scores

    def _must_be_here(self) -> None:
        if self.offloaded:
            raise _handed_over()

    def _weights_must_be_here(self) -> None:
        if self._scorer.offloaded:
            raise _handed_over()


def _handed_over() -> RuntimeError:
    return RuntimeError("Weights or optimiser states were handed over by offload(). Call reload() before this.")


def accumulate(sums: dict[str, float], shares: Mapping[str, Tensor | float]) -> None:
    """Add one micro-batch's metrics in place: extremes by their name, everything else as shares of a sum."""
    for name, share in shares.items():
        value = float(share)
        if name not in sums:
            sums[name] = value
        elif name.endswith(LARGEST):
            sums[name] = max(sums[name], value)
        elif name.endswith(SMALLEST):
            sums[name] = min(sums[name], value)
        else:
            sums[name] += value


def contributing(batch: TensorDict, loss: Loss) -> TensorDict:
    """Leave out the rows that cannot have a gradient; what a loss divides by is counted over the whole batch."""
    rows = loss.contributing_rows(batch)
    return batch if rows is None else batch[rows]
