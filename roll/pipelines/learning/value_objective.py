"""The critic's objective: the clipped squared error of its values, and how well they explain the returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import aggregate, count_sequences, count_tokens
from roll.algorithms.losses import value
from roll.algorithms.masking import marked_rows
from roll.config import RLConfig
from roll.strategies.base import BatchTotals

PREFIX = "critic/"


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """What ``critic`` minimises (see :class:`roll.strategies.base.Loss`).

    ``1/2 * max((v - R)^2, (clip(v, v_old +- clip) - R)^2)``, aggregated over the whole batch. Reads ``values`` (of the
    critic at the start of the step) and ``returns`` of the batch, each ``[batch, sequence]``.

    Attributes:
        clip: ``value_clip``: the largest move of a value that pays; ``None`` for the plain squared error.
        aggregation: ``loss_agg_mode``.
        max_length: Divisor of ``seq-mean-token-sum-norm``.
    """

    clip: float | None = 0.2
    aggregation: str = "token-mean"
    max_length: int | None = None

    @classmethod
    def from_config(cls, config: RLConfig) -> ValueObjective:
        """Read the keys of a configuration."""
        return cls(clip=config.value_clip, aggregation=config.loss_agg_mode, max_length=config.sequence_length)

    @property
    def needs_entropy(self) -> bool:
        """Never: a critic has no distribution."""
        return False

    def prepare(self, batch: TensorDict, generator: torch.Generator) -> None:
        """Do nothing: every token counts for itself."""

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count trained tokens and sequences of the whole batch."""
        mask = batch["response_mask"]
        tokens = count_tokens(mask)
        return BatchTotals(tokens, count_sequences(mask), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> Tensor:
        """Return the rows with a trained token."""
        return marked_rows(batch["response_mask"])

    def __call__(
        self, values: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the share of this micro-batch in the loss and in the metrics, which are means over trained tokens."""
        mask = batch["response_mask"]
        per_token, metrics = value(values, batch["values"], batch["returns"], mask, self.clip)
        loss = aggregate(
            per_token,
            mask,
            self.aggregation,
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_length=self.max_length,
        )
        share = count_tokens(mask) / max(totals.tokens, 1)
        return loss, {PREFIX + name: mean * share for name, mean in metrics.items()}


def critic_metrics(step: Mapping[str, float]) -> dict[str, float]:
    """Name what a train step of the critic returned so that it stands beside the policy's (``critic/loss``, …)."""
    return {name if name.startswith(PREFIX) else PREFIX + name: number for name, number in step.items()}


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """Return the share of the returns' variance that values explain, ``1 - Var(R - V) / Var(R)``.

    1 is a perfect critic, 0 one that knows no more than a constant, and below 0 it does harm.

    Args:
        values: ``[batch, sequence]``, before the update.
        returns: ``[batch, sequence]``.
        mask: ``[batch, sequence]``, nonzero on trained tokens.

    Returns:
        At most 1; ``None`` where all returns are equal, which leaves nothing to explain.
    """
    inside = mask.bool()
    target = returns[inside].double()
    # The variance of equal numbers is not exactly 0 in floating point.
    if target.numel() == 0 or target.min() == target.max():
        return None
    unexplained = (target - values[inside].double()).var(correction=0)
    return float(1 - unexplained / target.var(correction=0))
