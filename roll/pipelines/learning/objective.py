"""The policy objective: policy loss, entropy bonus, KL loss and supervised term, aggregated and weighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import aggregate
from roll.algorithms.kl import bias_correction, kl_penalty
from roll.algorithms.losses import compute, expert_mixture, prepare
from roll.algorithms.masking import marked_rows, tokens_per_row
from roll.algorithms.registry import LOSSES
from roll.config import RLConfig
from roll.pipelines.learning.algorithm_options import loss_options
from roll.pipelines.learning.expert_rows import EXPERT
from roll.pipelines.learning.loss_scope import SAMPLE_WEIGHTS, SAMPLER_WEIGHTS, loss_mask
from roll.strategies.base import EXTREMES, BatchTotals
from roll.strategies.training.micro_batches import PAIR

PROPORTIONAL_LOSSES = frozenset(
    {"ppo", "gspo", "gspo_segment", "gmpo", "cispo", "sapo", "topr", "tis", "vanilla", "sppo", "clip_cov"}
)
"""Policy losses that multiply by the advantage: a token with advantage 0 has no gradient."""

MIXTURE: Final = "mixture"
"""Entry of an optimiser step with expert rows, ``[batch]``: :func:`roll.algorithms.losses.expert_mixture`."""

_NAMES: Final = {"turn_ids": "turn_index", "groups": PAIR}
"""Tensors that losses call otherwise than the batch."""


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """What ``actor_train`` minimises (see :class:`roll.strategies.base.Loss`).

    ``rl_loss_coef * policy - entropy_loss_coef * entropy + kl_loss_coef * kl + sft_loss_coef * nll(positive samples)``,
    every term aggregated by ``loss_agg_mode`` over the whole batch: over the tokens of ``loss_mask``, or those of
    ``response_mask`` where the batch has none. The policy term is multiplied by ``sample_weights`` and
    ``sampler_weights`` where the batch has them. Rows that an ``expert`` wrote are seen by the policy term only; all
    other terms, and metrics, are of the rows that were sampled.

    Attributes:
        policy_loss: Registered name of the policy loss.
        options: Options of the policy loss.
        aggregation: ``loss_agg_mode``.
        max_length: Divisor of ``seq-mean-token-sum-norm``.
        policy_weight: ``rl_loss_coef``.
        entropy_weight: ``entropy_loss_coef``.
        kl_weight: ``kl_loss_coef``; 0 without ``use_kl_loss``. Reads ``ref_log_probs`` of the batch, or ``divergence``.
        kl_kind: ``kl_penalty``.
        kl_correction: ``use_bias_correction_kl``: weigh the divergence by the ratio to the policy that sampled.
        supervised_weight: ``sft_loss_coef``. Reads ``positive`` ``[batch]`` of the batch.
    """

    policy_loss: str = "ppo"
    options: Mapping[str, Any] = field(default_factory=dict)
    aggregation: str = "token-mean"
    max_length: int | None = None
    policy_weight: float = 1.0
    entropy_weight: float = 0.0
    kl_weight: float = 0.0
    kl_kind: str = "low_var_kl"
    kl_correction: bool = False
    supervised_weight: float = 0.0

    @classmethod
    def from_config(cls, config: RLConfig) -> PolicyObjective:
        """Read the loss keys of a configuration."""
        return cls(
            policy_loss=config.policy_loss_name,
            options=loss_options(config),
            aggregation=config.loss_agg_mode,
            max_length=config.sequence_length,
            policy_weight=config.rl_loss_coef,
            entropy_weight=config.entropy_loss_coef,
            kl_weight=config.kl_loss_coef if config.use_kl_loss else 0.0,
            kl_kind=config.kl_penalty,
            kl_correction=config.use_bias_correction_kl,
            supervised_weight=config.sft_loss_coef,
        )

    @property
    def needs_entropy(self) -> bool:
        """Always: entropy is the first number to look at when a policy stops learning, and costs little."""
        return True

    @property
    def reads(self) -> frozenset[str]:
        """The columns of a batch that the policy loss has asked for when it was registered."""
        entry = LOSSES.get(self.policy_loss)
        return frozenset(_NAMES.get(name, name) for name in entry.needs | entry.uses)

    def prepare(self, batch: TensorDict, generator: torch.Generator) -> None:
        """Write into ``batch``, which holds a whole optimiser step, what the policy loss decides over all its tokens.

        Args:
            batch: With ``old_log_probs``, ``advantages`` and what :func:`loss_mask` reads.
            generator: Source of what is drawn.
        """
        mask = loss_mask(batch)
        chosen = prepare(self.policy_loss, batch["old_log_probs"], batch["advantages"], mask, self.options, generator)
        for name, tensor in chosen.items():
            batch[name] = tensor
        if EXPERT in batch.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            batch[MIXTURE] = expert_mixture(batch[EXPERT], mask, self.aggregation)

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count trained tokens and sequences of the whole batch."""
        rows, written = self.contributing_rows(batch), batch.get(EXPERT, None)
        trained = tokens_per_row(loss_mask(batch))
        measured = trained if rows is None else trained * rows
        measured = measured if written is None else measured * ~written
        return BatchTotals(int(trained.sum()), int((trained > 0).sum()), measured_tokens=int(measured.sum()))

    def contributing_rows(self, batch: TensorDict) -> Tensor | None:
        """Return the rows that the loss sees; where the advantage is all that can make a gradient, those that have one.

        Groups whose members all earned the same teach nothing; leaving them out of the forward and backward passes
        changes no gradient, because losses divide by the counts of the whole batch.
        """
        mask = loss_mask(batch)
        other_terms = self.entropy_weight or self.kl_weight or self.supervised_weight
        if other_terms or self.policy_loss not in PROPORTIONAL_LOSSES:
            rows = marked_rows(mask)
            return None if bool(rows.all()) else rows
        return marked_rows(mask, batch["advantages"])

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the share of this micro-batch in the loss and in the metrics.

        A policy loss reports means over the tokens it sees, weighted here by their number; what ends in ``_max`` or
        ``_min`` is an extreme and stays as it is.
        """
        mask = loss_mask(batch)
        per_token, metrics = compute(
            self.policy_loss,
            log_probs,
            batch["old_log_probs"],
            batch["advantages"],
            mask,
            self.options,
            **self._further(batch),
        )
        policy = self._aggregate(_weighted(per_token, batch), mask, totals)
        assert entropy is not None
        sampled = _sampled(mask, batch)
        mean_entropy = aggregate(entropy, sampled, "token-mean", total_tokens=totals.measured_tokens)
        loss = self.policy_weight * policy
        share = float(sampled.sum()) / max(totals.measured_tokens, 1)
        report = {
            f"policy/{name}": torch.as_tensor(value) * (1.0 if name.endswith(EXTREMES) else share)
            for name, value in metrics.items()
        }
        report |= {"loss/policy": policy.detach(), "policy/entropy": mean_entropy.detach()}
        if self.entropy_weight:
            loss = loss - self.entropy_weight * self._over_sampled(entropy, sampled, batch, totals)
        if self.kl_weight:
            if self.kl_kind == "full":
                divergence = batch["divergence"]
            else:
                divergence = kl_penalty(log_probs, batch["ref_log_probs"], self.kl_kind)
            if self.kl_correction:
                divergence = divergence * bias_correction(log_probs, batch["old_log_probs"], sampled)
            kl = self._over_sampled(divergence, sampled, batch, totals)
            loss = loss + self.kl_weight * kl
            report["loss/kl"] = kl.detach()
        if self.supervised_weight:
            positive = sampled & batch["positive"].unsqueeze(1)
            nll = self._over_sampled(-log_probs, positive, batch, totals)
            loss = loss + self.supervised_weight * nll
            report["loss/sft"] = nll.detach()
        if EXPERT in batch.keys():  # noqa: SIM118
            # Losses with experts leave no row out, so that what is not measured is the expert's.
            theirs = max(totals.tokens - totals.measured_tokens, 1)
            report["expert/nll"] = aggregate(-log_probs.detach(), mask & ~sampled, "token-mean", total_tokens=theirs)
        return loss, report

    def _further(self, batch: TensorDict) -> dict[str, Tensor]:
        """Return what the policy loss reads beside log-probs, advantages and mask, as far as the batch has it."""
        entry = LOSSES.get(self.policy_loss)
        places = {name: _NAMES.get(name, name) for name in entry.needs | entry.uses}
        return {name: batch[place] for name, place in places.items() if place in batch.keys()}

    def _over_sampled(self, per_token: Tensor, sampled: Tensor, batch: TensorDict, totals: BatchTotals) -> Tensor:
        """Aggregate over the rows that were sampled, as if there were no others."""
        factors = batch.get(MIXTURE, None)
        if factors is not None:
            per_token = per_token * factors.unsqueeze(1).to(per_token.dtype)
        return self._aggregate(per_token, sampled, totals)

    def _aggregate(self, per_token: Tensor, mask: Tensor, totals: BatchTotals) -> Tensor:
        return aggregate(
            per_token,
            mask,
            self.aggregation,
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_length=self.max_length,
        )


def merge_metrics(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of several optimiser steps as one: extremes by their name, means of everything else.

    A metric that only some steps report is averaged over those.
    """
    columns: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    return {name: _merge(name, values) for name, values in columns.items()}


def _merge(name: str, values: Sequence[float]) -> float:
    if name.endswith("_max"):
        return max(values)
    if name.endswith("_min"):
        return min(values)
    return sum(values) / len(values)


def _sampled(mask: Tensor, batch: TensorDict) -> Tensor:
    """Return ``mask`` without the rows that an expert wrote, ``[batch, sequence]``."""
    written = batch.get(EXPERT, None)
    return mask if written is None else mask & ~written.unsqueeze(1)


def _weighted(per_token: Tensor, batch: TensorDict) -> Tensor:
    """Multiply ``[batch, sequence]`` by the weights that the batch has."""
    samples, tokens = batch.get(SAMPLE_WEIGHTS, None), batch.get(SAMPLER_WEIGHTS, None)
    if samples is not None:
        per_token = per_token * samples.unsqueeze(1).to(per_token.dtype)
    return per_token if tokens is None else per_token * tokens.to(per_token.dtype)
