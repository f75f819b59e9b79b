"""What distillation minimises."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import aggregate, count_sequences, count_tokens
from roll.algorithms.distillation import sampled_reverse_kl
from roll.algorithms.masking import marked_rows
from roll.strategies.base import BatchTotals

TEACHER_LOG_PROBS = "teacher_log_probs"
"""Column ``[batch, sequence]``: what a teacher says of the sampled tokens, where it says no more."""

IMITATED = "imitated"
"""Column ``[batch, sequence]`` bool: tokens whose likelihood is raised too, beside what a teacher says of them."""


@dataclass(frozen=True, slots=True)
class DistillationLoss:
    """Divergence from the teachers at the tokens of ``response_mask`` (see :class:`roll.strategies.base.Loss`).

    Reads ``divergence``, which the forward pass computes. Tokens are those that were sampled: that other tokens would
    have been sampled by another student has no gradient, as in GKD.

    Attributes:
        aggregation: ``loss_agg_mode``.
        max_length: Divisor of ``seq-mean-token-sum-norm``.

    Source: Agarwal et al. 2024, On-Policy Distillation of Language Models (arXiv:2306.13649).
    """

    aggregation: str = "token-mean"
    max_length: int | None = None

    @property
    def needs_entropy(self) -> bool:
        """Always: a student that becomes certain too early is the first thing to look for."""
        return True

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count trained tokens and sequences."""
        mask = batch["response_mask"]
        tokens = count_tokens(mask)
        return BatchTotals(tokens, count_sequences(mask), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> Tensor | None:
        """Return the rows with trained tokens, ``None`` if all have some."""
        rows = marked_rows(batch["response_mask"])
        return None if bool(rows.all()) else rows

    def divergence(self, log_probs: Tensor, batch: TensorDict) -> Tensor:
        """Return how far the student is from its teacher at each token, ``[batch, sequence]``."""
        return batch["divergence"]

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return this micro-batch's share of the divergence, a scalar, and of the mean entropy."""
        mask, divergence = batch["response_mask"], self.divergence(log_probs, batch)
        assert entropy is not None
        loss = aggregate(
            divergence,
            mask,
            self.aggregation,
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_length=self.max_length,
        )
        means = {"divergence": divergence, "entropy": entropy}
        return loss, {
            f"distill/{name}": aggregate(each.detach(), mask, "token-mean", total_tokens=totals.measured_tokens)
            for name, each in means.items()
        }


@dataclass(frozen=True, slots=True)
class SampledDistillationLoss(DistillationLoss):
    """The same with what the teacher says of the sampled tokens alone.

    Reads ``teacher_log_probs`` and ``sampler_log_probs`` (:func:`roll.algorithms.distillation.sampled_reverse_kl`).
    """

    def divergence(self, log_probs: Tensor, batch: TensorDict) -> Tensor:
        """Return the estimate of each token, ``[batch, sequence]``."""
        mask = batch["response_mask"]
        return sampled_reverse_kl(log_probs, batch[TEACHER_LOG_PROBS], batch["sampler_log_probs"], mask)


@dataclass(frozen=True, slots=True)
class TaughtImitationLoss:
    """Divergence from a teacher at the tokens of ``response_mask``, and imitation of those of ``imitated``.

    ``weight`` times the mean divergence plus ``1 - weight`` times the mean negative log-likelihood. Reads
    ``divergence``, which the forward pass computes, and the column ``imitated``, a part of the mask.

    Attributes:
        weight: Above 0, at most 1.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network, of whole answers token by token.
    """

    weight: float = 1.0

    @property
    def needs_entropy(self) -> bool:
        """No."""
        return False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the tokens that are compared, sequences, and (as what metrics divide by) imitated tokens."""
        mask = batch["response_mask"]
        return BatchTotals(count_tokens(mask), count_sequences(mask), measured_tokens=count_tokens(batch[IMITATED]))

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return this micro-batch's share of the loss, a scalar, of ``log_probs`` ``[batch, sequence]``."""
        divergence = (batch["divergence"] * batch["response_mask"]).sum() / max(totals.tokens, 1)
        nll = -(log_probs * batch[IMITATED]).sum() / max(totals.measured_tokens, 1)
        metrics = {"distill/divergence": divergence.detach(), "nll": nll.detach()}
        return self.weight * divergence + (1 - self.weight) * nll, metrics
