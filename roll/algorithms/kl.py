"""KL divergence from the reference policy: estimators per token, the penalty in the reward, and its controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import log_ratio, to_ratio
from roll.algorithms.masking import blank, marked_rows, masked_mean

KLKind = Literal["kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+", "full"]

KL_ALIASES: Final = {
    "k1": "kl",
    "k2": "mse",
    "k3": "low_var_kl",
    "k1+": "kl+",
    "k2+": "mse",
    "k3+": "low_var_kl+",
    "mse+": "mse",
}
"""Other names of the estimators. ``k2`` has its own gradient, so that ``k2+`` is no other estimator."""

STRAIGHT_THROUGH: Final = "+"
"""Ends the name of an estimator that keeps its value and takes the gradient of ``mse``."""

REWARD_BOUND: Final = 10.0
"""Largest divergence of a token that ``low_var_kl`` charges in the reward."""


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "kl") -> Tensor:
    """Estimate the divergence of the policy from the reference at each token.

    With ``d = log pi - log pi_ref``: ``kl`` (``k1``) is ``d``; ``abs`` is ``|d|``; ``mse`` (``k2``) is ``d^2 / 2``;
    ``low_var_kl`` (``k3``) is ``exp(-d) + d - 1`` with ``-d`` clamped to +-20; ``full`` is
    ``sum_v pi * (log pi - log pi_ref)`` over the vocabulary.

    A ``+`` behind the name (``k1+``, ``abs+``, ``k3+``) keeps the value and takes the gradient of ``mse``, straight
    through: on tokens that the policy sampled itself, that gradient is the divergence's in expectation, and those of
    ``kl`` and ``low_var_kl`` are not.

    As a loss, ``low_var_kl`` must not be bounded: a bound of 10 makes its gradient 0 below ``d`` of about -2.65, where
    the policy has drifted furthest. For rewards, :func:`reward_divergence` bounds it.

    Args:
        log_probs: ``[batch, sequence]``; for ``full`` the policy's logits ``[batch, sequence, vocabulary]``.
        ref_log_probs: The same of the reference policy.
        kind: One of the names above.

    Returns:
        ``[batch, sequence]``, differentiable.

    Raises:
        ValueError: ``kind`` is unknown.

    Source: Schulman 2020, Approximating KL Divergence; verl (straight through).
    """
    kind = KL_ALIASES.get(kind, kind)
    if kind == "full":
        policy = torch.log_softmax(log_probs, -1)
        reference = torch.log_softmax(ref_log_probs, -1)
        return (policy.exp() * (policy - reference)).sum(-1)
    difference = log_probs - ref_log_probs
    if not kind.endswith(STRAIGHT_THROUGH):
        return _estimate(difference, kind)
    slope = difference.square() / 2
    # The two terms cancel exactly, unlike value + slope - slope.
    return _estimate(difference.detach(), kind.removesuffix(STRAIGHT_THROUGH)) + (slope - slope.detach())


def _estimate(difference: Tensor, kind: str) -> Tensor:
    """Return an estimate from one sampled token each, ``[batch, sequence]``."""
    if kind == "kl":
        return difference
    if kind == "abs":
        return difference.abs()
    if kind == "mse":
        return difference.square() / 2
    if kind == "low_var_kl":
        negative = (-difference).clamp(-20.0, 20.0)
        # expm1 keeps the digits that exp(x) - 1 loses where the policies nearly agree.
        return torch.expm1(negative) - negative
    known = "kl (k1), abs, mse (k2), low_var_kl (k3), kl+ (k1+), abs+, low_var_kl+ (k3+), full"
    raise ValueError(f"kl_penalty: unknown kind {kind!r}; known: {known}.")


@torch.no_grad()
def reward_divergence(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "kl") -> Tensor:
    """Return what a token is charged in the reward: :func:`kl_penalty`, where ``low_var_kl`` is at most 10.

    Rewards have no gradient to lose, and the exponential of one token would outweigh all others of its batch.

    Args:
        log_probs: As in :func:`kl_penalty`.
        ref_log_probs: As in :func:`kl_penalty`.
        kind: As in :func:`kl_penalty`.

    Returns:
        ``[batch, sequence]``, without gradient.

    Source: Schulman 2020, Approximating KL Divergence; verl (the bound).
    """
    divergence = kl_penalty(log_probs, ref_log_probs, kind)
    is_exponential = KL_ALIASES.get(kind, kind).startswith("low_var_kl")
    return divergence.clamp(-REWARD_BOUND, REWARD_BOUND) if is_exponential else divergence


def bias_correction(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return ``pi / pi_old`` on the mask ``[batch, sequence]``, differentiable: the weight of a divergence in the loss.

    Tokens were sampled by the old policy. Weighted so, the estimates ``kl`` and ``low_var_kl`` of the loss have the
    gradient of the policy's own divergence in expectation, also where the ratio is 1.

    Args:
        log_probs: ``[batch, sequence]``, of the policy being trained.
        old_log_probs: ``[batch, sequence]``, of the policy that sampled.
        mask: ``[batch, sequence]``, nonzero on trained tokens.

    Source: DeepSeek-AI 2025, DeepSeek-V3.2; TRL's ``use_bias_correction_kl``.
    """
    return to_ratio(log_ratio(log_probs, old_log_probs, mask))


def penalize_rewards(token_rewards: Tensor, kl: Tensor, coefficient: float, mask: Tensor) -> Tensor:
    """Return ``r_t - coefficient * kl_t`` on the masked tokens ``[batch, sequence]``, 0 elsewhere.

    Source: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences.
    """
    return blank(token_rewards - coefficient * kl, mask)


def batch_kl(kl: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the sequences that have a token of the masked mean of ``kl`` ``[batch, sequence]``, scalar.

    Source: verl, after Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences.
    """
    return masked_mean(masked_mean(kl, mask, 1), marked_rows(mask))


class KLController(Protocol):
    """Holds the coefficient of the KL penalty. Read ``coefficient`` for a batch first, then ``update`` with it."""

    coefficient: float

    def update(self, current_kl: float, samples: int) -> None:
        """Adapt the coefficient to the divergence of a batch of ``samples`` samples."""
        ...

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        ...

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore :meth:`state_dict`."""
        ...


@dataclass
class FixedKLController:
    """A coefficient that stays."""

    coefficient: float

    def update(self, current_kl: float, samples: int) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, float]:
        """Return the coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the coefficient."""
        self.coefficient = state["coefficient"]


@dataclass
class AdaptiveKLController:
    """Moves the coefficient so that the divergence approaches a target.

    ``coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) * samples / horizon``, with KL from :func:`batch_kl`.

    Attributes:
        coefficient: The current one (configuration key ``init_kl_coef`` at the start).
        target: Divergence aimed at, > 0.
        horizon: Samples over which an error of 20 % is corrected, > 0 (``kl_horizon``).

    Source: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences.
    """

    coefficient: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        if self.target <= 0 or self.horizon <= 0:
            raise ValueError(f"adaptive KL needs target > 0 and horizon > 0, got {self.target} and {self.horizon}.")

    def update(self, current_kl: float, samples: int) -> None:
        """Adapt to the divergence ``current_kl`` of a batch of ``samples`` samples."""
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.coefficient *= 1.0 + error * samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        """Return the coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the coefficient."""
        self.coefficient = state["coefficient"]


def kl_controller(
    kind: Literal["fixed", "adaptive"], coefficient: float, *, target: float = 0.1, horizon: float = 10000.0
) -> FixedKLController | AdaptiveKLController:
    """Make the controller that the configuration names.

    Raises:
        ValueError: ``kind`` is unknown, or target or horizon are not positive.
    """
    if kind == "fixed":
        return FixedKLController(coefficient)
    if kind == "adaptive":
        return AdaptiveKLController(coefficient, target, horizon)
    raise ValueError(f"kl controller: unknown kind {kind!r}; known: fixed, adaptive.")
