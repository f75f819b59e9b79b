"""What learning from preferences minimises: losses over pairs of answers, or over single ones with a label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import count_tokens
from roll.algorithms.losses import preference
from roll.algorithms.losses.preference import KINDS, LossType
from roll.strategies.base import BatchTotals
from roll.strategies.training.micro_batches import PAIR

CHOSEN = "chosen"
"""Column ``[batch]`` bool: the better answer of a pair, or a desirable answer."""
REF_SUMS = "ref_sums"
"""Column ``[batch]``: log-probs of the reference, summed over an answer; where the loss has a reference."""
DIVERGENCE = "kl_estimate"
"""Column ``[batch]``, the same in all rows: z of KTO (:func:`roll.algorithms.losses.preference.kto_divergence`)."""

Metrics = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss:
    """Mean loss of the pairs (of the answers, with ``kto``) of a batch (see :class:`roll.strategies.base.Loss`).

    Batches have the columns ``chosen``, for pairs ``pair``, and ``ref_sums`` and ``divergence`` where the loss reads
    them.

    Attributes:
        kind: A name of :data:`roll.algorithms.losses.preference.KINDS`.
        beta: Its beta; ``orpo``: the weight of the term that compares.
        label_smoothing: Of ``sigmoid``, ``sigmoid_norm`` and ``robust``.
        gamma: Of ``simpo``.
        desirable_weight: Of ``kto``.
        undesirable_weight: Of ``kto``.
        supervised_weight: Of the mean negative log-likelihood of the tokens of the chosen answers, which is added.
    """

    kind: LossType
    beta: float
    label_smoothing: float = 0.0
    gamma: float = 0.5
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    supervised_weight: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        """No."""
        return False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the tokens of chosen answers, all answers, and (what mean metrics divide by) chosen answers."""
        chosen = batch[CHOSEN]
        return BatchTotals(count_tokens(batch["response_mask"][chosen]), len(chosen), int(chosen.sum()))

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, Metrics]:
        """Return this micro-batch's share of the mean, a scalar, of ``log_probs`` ``[batch, sequence]``."""
        return self.of_answers(answer_sums(log_probs, batch), batch, totals)

    def of_answers(self, sums: Tensor, batch: TensorDict, totals: BatchTotals) -> tuple[Tensor, Metrics]:
        """Return the same as a call does, from what :func:`answer_sums` returns, ``[batch]``."""
        if KINDS[self.kind].paired:
            loss, metrics = self._pairs(sums, batch, totals)
        else:
            loss, metrics = self._single(sums, batch, totals)
        chosen, rejected = _both(sums.detach(), batch[CHOSEN])
        metrics |= _shares("logps", chosen, rejected, totals)
        if self.supervised_weight:
            likelihood = -sums[batch[CHOSEN]].sum() / max(totals.tokens, 1)
            loss = loss + self.supervised_weight * likelihood
            metrics["nll"] = likelihood.detach()
        return loss, metrics

    def _pairs(self, sums: Tensor, batch: TensorDict, totals: BatchTotals) -> tuple[Tensor, Metrics]:
        about = KINDS[self.kind]
        compared = sums - batch[REF_SUMS].to(sums) if about.reference else sums
        if about.means:
            compared = compared / batch["response_mask"].sum(1).clamp_min(1)
        order = torch.argsort(batch[PAIR] * 2 + ~batch[CHOSEN])
        chosen, rejected = compared[order[0::2]], compared[order[1::2]]
        losses = self._losses(chosen, rejected)
        metrics = preference.preference_metrics(self.beta * chosen.detach(), self.beta * rejected.detach())
        own = sums.detach()[order] / (batch["response_mask"].sum(1)[order] if about.means else 1)
        metrics["logps/accuracies"] = (own[0::2] > own[1::2]).double().sum()
        pairs = max(totals.measured_tokens, 1)
        return losses.sum() / pairs, {name: value / pairs for name, value in metrics.items()}

    def _losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        beta, smoothing = self.beta, self.label_smoothing
        if self.kind in ("sigmoid", "sigmoid_norm"):
            return preference.dpo(chosen - rejected, beta=beta, label_smoothing=smoothing)
        if self.kind == "robust":
            return preference.robust_dpo(chosen - rejected, beta=beta, label_smoothing=smoothing)
        if self.kind == "ipo":
            return preference.ipo(chosen - rejected, beta=beta)
        if self.kind == "simpo":
            return preference.simpo(chosen, rejected, beta=beta, gamma=self.gamma)
        return beta * preference.orpo(chosen, rejected)

    def _single(self, sums: Tensor, batch: TensorDict, totals: BatchTotals) -> tuple[Tensor, Metrics]:
        ratios = sums - batch[REF_SUMS].to(sums)
        losses = preference.kto(
            ratios,
            batch[CHOSEN],
            batch[DIVERGENCE].to(sums),
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
        )
        answers = max(totals.sequences, 1)
        chosen, rejected = _both(self.beta * ratios.detach(), batch[CHOSEN])
        metrics = _shares("rewards", chosen, rejected, totals)
        metrics["rewards/margins"] = metrics["rewards/chosen"] - metrics["rewards/rejected"]
        metrics["kl"] = batch[DIVERGENCE].to(sums).sum() / answers
        return losses.sum() / answers, metrics


def answer_sums(log_probs: Tensor, batch: TensorDict) -> Tensor:
    """Return log-probs ``[batch, sequence]`` summed over the trained tokens of each row, ``[batch]`` float64."""
    # Differences of long sums are what counts, and single precision would eat them.
    return (log_probs.double() * batch["response_mask"]).sum(1)


def _both(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    return values[chosen], values[~chosen]


def _shares(name: str, chosen: Tensor, rejected: Tensor, totals: BatchTotals) -> Metrics:
    """Return the shares of two means, over the chosen and over the rejected answers of a batch with ``totals``."""
    better = totals.measured_tokens
    return {
        f"{name}/chosen": chosen.sum() / max(better, 1),
        f"{name}/rejected": rejected.sum() / max(totals.sequences - better, 1),
    }
