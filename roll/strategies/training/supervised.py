"""What supervised fine-tuning minimises."""

from __future__ import annotations

from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import count_sequences, count_tokens
from roll.algorithms.losses.supervised import sft
from roll.strategies.base import BatchTotals


class SupervisedLoss:
    """Mean negative log-likelihood of the tokens of ``response_mask`` (see :class:`roll.strategies.base.Loss`).

    The mean is over all of them in the batch of an optimiser step, so a long answer weighs more than a short one.
    """

    needs_entropy = False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the trained tokens."""
        mask = batch["response_mask"]
        tokens = count_tokens(mask)
        return BatchTotals(tokens, count_sequences(mask), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return this micro-batch's share of the mean, a scalar, of ``log_probs`` ``[batch, sequence]``."""
        loss, _ = sft(log_probs, batch["response_mask"])
        return loss.sum() / max(totals.tokens, 1), {}
