"""What training of reward models minimises: of pairs of whole answers, or of the steps of answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import count_sequences, count_tokens
from roll.algorithms.losses.reward import bradley_terry, centering, step_correctness
from roll.strategies.base import BatchTotals
from roll.strategies.training.micro_batches import PAIR
from roll.strategies.training.preference import CHOSEN

MARGIN = "margin"
"""Column ``[batch]``: by how much the chosen answer of a row's pair is to score higher."""
LABEL = "step_labels"
"""Column ``[batch, sequence]``: labels of steps in [0, 1], where they are scored."""

Metrics = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class OutcomeLoss:
    """Mean Bradley-Terry loss of the pairs of a batch (see :class:`roll.strategies.base.Loss`).

    Batches have the columns ``pair``, ``chosen`` and ``margin``, and one token per row in the mask, behind the answer:
    the value of the state before it is the score of the answer.

    Attributes:
        center: Weight of the mean of :func:`roll.algorithms.losses.reward.centering`.
    """

    center: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        """No."""
        return False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the scores, the answers, and (what everything divides by) the pairs."""
        mask = batch["response_mask"]
        return BatchTotals(count_tokens(mask), count_sequences(mask), int(batch[CHOSEN].sum()))

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, values: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, Metrics]:
        """Return this micro-batch's share of the mean, a scalar, of ``values`` ``[batch, sequence]``."""
        pairs = max(totals.measured_tokens, 1)
        scores = (values * batch["response_mask"]).sum(1)
        order = torch.argsort(batch[PAIR] * 2 + ~batch[CHOSEN])
        chosen, rejected = scores[order[0::2]], scores[order[1::2]]
        loss = bradley_terry(chosen, rejected, batch[MARGIN][order[0::2]].to(scores)).sum() / pairs
        better, worse = chosen.detach(), rejected.detach()
        metrics = {
            "accuracy": (better > worse).double().sum() / pairs,
            "margin": (better - worse).sum() / pairs,
            "rewards/chosen": better.sum() / pairs,
            "rewards/rejected": worse.sum() / pairs,
        }
        if self.center:
            centered = centering(chosen, rejected).sum() / pairs
            loss = loss + self.center * centered
            metrics["center"] = centered.detach()
        return loss, metrics


@dataclass(frozen=True, slots=True)
class ProcessLoss:
    """Mean cross-entropy of the labels of all steps of a batch (see :class:`roll.strategies.base.Loss`).

    Batches have the column ``step_labels``, and in the mask one token per step, behind it: the value of the state
    before it is the logit of the step.
    """

    @property
    def needs_entropy(self) -> bool:
        """No."""
        return False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the steps, the answers, and the steps that are right."""
        mask = batch["response_mask"]
        return BatchTotals(count_tokens(mask), count_sequences(mask), int(((batch[LABEL] > 0.5) & mask).sum()))

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, values: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, Metrics]:
        """Return this micro-batch's share of the mean, a scalar, of ``values`` ``[batch, sequence]``."""
        mask = batch["response_mask"].bool()
        logits, labels = values[mask], batch[LABEL][mask].to(values)
        steps, right = max(totals.tokens, 1), totals.measured_tokens
        said, true = logits.detach() > 0, labels > 0.5
        metrics = {
            "accuracy": (said == true).double().sum() / steps,
            "accuracy/right": (said & true).double().sum() / max(right, 1),
            "accuracy/wrong": (~said & ~true).double().sum() / max(totals.tokens - right, 1),
            "rewards/mean": torch.sigmoid(logits.detach()).sum() / steps,
        }
        return step_correctness(logits, labels).sum() / steps, metrics
