"""Losses over pairs of answers, a better and a worse one, and over single answers with a label.

All are pure functions of sums, or of means per token, of log-probs; what calls them knows which (:data:`KINDS`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics

LossType = Literal["sigmoid", "sigmoid_norm", "robust", "ipo", "simpo", "orpo", "kto"]


@dataclass(frozen=True, slots=True)
class PreferenceKind:
    """What a loss is a function of.

    Attributes:
        paired: Of pairs, not of single answers with a label.
        reference: Of the log-probs of a reference policy too.
        means: Of the means per token of log-probs, not of their sums.
    """

    paired: bool = True
    reference: bool = True
    means: bool = False


KINDS: Final[Mapping[str, PreferenceKind]] = MappingProxyType(
    {
        "sigmoid": PreferenceKind(),
        "sigmoid_norm": PreferenceKind(means=True),
        "robust": PreferenceKind(),
        "ipo": PreferenceKind(means=True),
        "simpo": PreferenceKind(reference=False, means=True),
        "orpo": PreferenceKind(reference=False, means=True),
        "kto": PreferenceKind(paired=False),
    }
)
"""The losses by name."""


def dpo(margins: Tensor, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """Direct preference optimization: ``-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)``.

    The margin is ``h = (log pi(chosen) - log pi_ref(chosen)) - (log pi(rejected) - log pi_ref(rejected))``. Of sums of
    log-probs this is DPO; of means per token it is the length-normalised one (``sigmoid_norm``).

    Args:
        margins: ``[pairs]``, h.
        beta: Strength of the pull towards the reference, > 0.
        label_smoothing: e, the probability that a label is wrong, in [0, 0.5): above 0 this is conservative DPO.

    Returns:
        ``[pairs]``.

    Raises:
        ValueError: An option is out of range.

    Source: Rafailov et al. 2023, DPO, eq. 7; Mitchell 2023, a note on DPO with noisy preferences (conservative DPO,
    eq. 3); Meng et al. 2024, SimPO (DPO with length normalisation in its ablations).
    """
    _check("dpo", beta, label_smoothing)
    right, wrong = F.logsigmoid(beta * margins), F.logsigmoid(-beta * margins)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def robust_dpo(margins: Tensor, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """Unbiased estimate of the loss of DPO where labels are wrong: ``((1 - e) l(h) - e l(-h)) / (1 - 2 e)``.

    ``l(h) = -log sigmoid(beta h)``, with the margin h of :func:`dpo`.

    Args:
        margins: ``[pairs]``.
        beta: As in :func:`dpo`.
        label_smoothing: e, the share of labels that are wrong, in [0, 0.5).

    Returns:
        ``[pairs]``; single ones may be negative.

    Raises:
        ValueError: An option is out of range.

    Source: Chowdhury et al. 2024, provably robust DPO, eq. 9.
    """
    _check("robust", beta, label_smoothing)
    right, wrong = -F.logsigmoid(beta * margins), -F.logsigmoid(-beta * margins)
    return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)


def ipo(margins: Tensor, *, beta: float = 0.1) -> Tensor:
    """Identity preference optimization: ``(h - 1 / (2 beta))^2``.

    Args:
        margins: ``[pairs]``, h as in :func:`dpo`, of means per token: sums would weigh long answers more, and its
            authors said that they took means.
        beta: tau of the paper, > 0.

    Returns:
        ``[pairs]``.

    Raises:
        ValueError: ``beta`` is not positive.

    Source: Azar et al. 2023, a general theoretical paradigm to understand learning from human preferences, eq. 17.
    """
    _check("ipo", beta)
    return (margins - 1 / (2 * beta)).square()


def simpo(chosen: Tensor, rejected: Tensor, *, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    """Simple preference optimization: ``-log sigmoid(beta (chosen - rejected) - gamma)``, without a reference.

    Args:
        chosen: ``[pairs]``, means per token of log-probs.
        rejected: ``[pairs]``.
        beta: Scale of the rewards, > 0.
        gamma: Margin of rewards that is aimed at.

    Returns:
        ``[pairs]``.

    Raises:
        ValueError: ``beta`` is not positive.

    Source: Meng et al. 2024, SimPO, eq. 6.
    """
    _check("simpo", beta)
    return -F.logsigmoid(beta * (chosen - rejected) - gamma)


def orpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The term of ORPO that compares: ``-log sigmoid(log odds(chosen) - log odds(rejected))``, without a reference.

    ``odds(y) = P(y) / (1 - P(y))`` with P the geometric mean of the probabilities of the tokens. The other term is the
    negative log-likelihood of the chosen answer.

    Args:
        chosen: ``[pairs]``, log P: means per token of log-probs, below 0.
        rejected: ``[pairs]``.

    Returns:
        ``[pairs]``.

    Source: Hong et al. 2024, ORPO, eq. 4 and 7.
    """
    return -F.logsigmoid((chosen - _log_complement(chosen)) - (rejected - _log_complement(rejected)))


def kto(
    log_ratios: Tensor,
    desirable: Tensor,
    divergence: Tensor | float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Kahneman-Tversky optimization: ``w (1 - sigmoid(beta (r - z)))``, with ``z - r`` for undesirable answers.

    Args:
        log_ratios: ``[answers]``, ``r = log pi - log pi_ref``, of sums.
        desirable: ``[answers]`` bool, the labels.
        divergence: z, scalar or ``[answers]``, without a gradient: see :func:`kto_divergence`.
        beta: Risk aversion, > 0.
        desirable_weight: w of desirable answers.
        undesirable_weight: w of the others.

    Returns:
        ``[answers]``.

    Raises:
        ValueError: ``beta`` is not positive.

    Source: Ethayarajh et al. 2024, KTO, eq. 8.
    """
    _check("kto", beta)
    gain = torch.where(desirable, log_ratios - divergence, divergence - log_ratios)
    weight = torch.where(desirable, desirable_weight, undesirable_weight).to(log_ratios.dtype)
    return weight * (1 - torch.sigmoid(beta * gain))


@torch.no_grad()
def kto_divergence(log_ratios: Tensor) -> Tensor:
    """Return z of :func:`kto`, a scalar: the mean of ``log pi - log pi_ref`` of unrelated answers, at least 0.

    Args:
        log_ratios: ``[answers]``, sums over an answer to one prompt behind another prompt.

    Source: Ethayarajh et al. 2024, KTO, section 4.1.
    """
    return log_ratios.mean().clamp_min(0.0)


@torch.no_grad()
def preference_metrics(chosen: Tensor, rejected: Tensor) -> Metrics:
    """Return sums over pairs: the rewards of chosen and rejected answers, their margins, how many are ranked right.

    Args:
        chosen: ``[pairs]``, implicit rewards: ``beta (log pi - log pi_ref)``; without a reference ``beta log pi``.
        rejected: ``[pairs]``.
    """
    return {
        "rewards/chosen": chosen.sum(),
        "rewards/rejected": rejected.sum(),
        "rewards/margins": (chosen - rejected).sum(),
        "rewards/accuracies": (chosen > rejected).to(chosen.dtype).sum(),
    }


def _log_complement(log_p: Tensor) -> Tensor:
    """Return ``log(1 - p)`` from ``log p`` below 0, precise at both ends (Maechler 2012)."""
    near_one = log_p > -math.log(2)
    # The branch that is not taken must not make the gradient nan.
    small, large = torch.where(near_one, log_p, -1.0), torch.where(near_one, -1.0, log_p)
    tiny = torch.finfo(log_p.dtype).tiny
    return torch.where(near_one, torch.log((-torch.expm1(small)).clamp_min(tiny)), torch.log1p(-torch.exp(large)))


def _check(name: str, beta: float, label_smoothing: float = 0.0) -> None:
    if beta <= 0:
        raise ValueError(f"{name}: beta must be positive, got {beta}.")
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"{name}: label_smoothing must lie in [0, 0.5), got {label_smoothing}.")
