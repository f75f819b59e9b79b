"""What train strategies have in common: scoring with the model that is trained, sums of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.strategies.base import EXTREMES, Loss

LARGEST, SMALLEST = EXTREMES


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

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Let batches say what their ``divergence`` is measured from (:mod:`roll.strategies.training.comparing`)."""
        self._scorer.measure_from(*heads, divergence=divergence)

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
    """Add one micro-batch's metrics, scalars, in place: extremes by their name, all else as shares of a sum."""
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
