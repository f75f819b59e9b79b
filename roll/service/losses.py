"""Losses of the protocol: pure functions of log-probs, sums over the tokens of an example.

Definitions are those of Tinker's documentation, "Loss functions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from roll.service.records import RefusedError

Loss = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, float]], Tensor]
"""Log-probs of the targets, the loss's inputs and its settings; returns the loss of each target. All ``[length]``."""


def cross_entropy(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return ``-w · log p`` of each target, ``[length]``, or ``[length, targets]`` where a position has several."""
    weights = inputs.get("weights")
    return -logprobs if weights is None else -logprobs * weights


def importance_sampling(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return ``-p/q · A`` of each token, ``[length]``, ``q`` being the probability that it was sampled with."""
    return -_ratio(logprobs, inputs) * inputs["advantages"]


def ppo(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return the clipped objective of each token, negated, ``[length]`` (Schulman et al. 2017, eq. 7)."""
    ratio, advantages = _ratio(logprobs, inputs), inputs["advantages"]
    clipped = ratio.clamp(config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2))
    return -torch.minimum(ratio * advantages, clipped * advantages)


def cispo(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return ``-clip(p/q) · A · log p``, ``[length]``, the clipped ratio a constant (MiniMax-M1, 2025, eq. 4)."""
    ratio = _ratio(logprobs, inputs).detach()
    clipped = ratio.clamp(config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2))
    return -clipped * inputs["advantages"] * logprobs


def dro(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return ``-(A · log p - beta/2 · (log p/q)²)`` of each token, ``[length]`` (Richemond et al. 2024)."""
    squared = (logprobs - inputs["logprobs"]) ** 2
    return -(inputs["advantages"] * logprobs - config["beta"] / 2 * squared)


@dataclass(frozen=True, slots=True)
class LossKind:
    """A loss, and what it is given.

    Attributes:
        function: Computes it.
        inputs: What it needs beside the targets.
        optional: Settings that it has.
        needed: Settings without a value of their own.
        several: Whether a position may have several targets, ``[length, targets]``.
    """

    function: Loss
    inputs: frozenset[str] = frozenset({"logprobs", "advantages"})
    optional: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    several: bool = False


_CLIP: Final = frozenset({"clip_low_threshold", "clip_high_threshold"})

LOSSES: Final[Mapping[str, LossKind]] = {
    "cross_entropy": LossKind(cross_entropy, inputs=frozenset(), several=True),
    "importance_sampling": LossKind(importance_sampling),
    "ppo": LossKind(ppo, optional=_CLIP),
    "cispo": LossKind(cispo, optional=_CLIP),
    "dro": LossKind(dro, needed=frozenset({"beta"})),
}
"""By name."""


def loss_named(name: str, given: frozenset[str], config: Mapping[str, float]) -> LossKind:
    """Return a loss.

    Args:
        name: As the client says it.
        given: Inputs that its examples have.
        config: Its settings.

    Raises:
        RefusedError: There is none of this name, or its inputs or settings are not those.
    """
    if name not in LOSSES:
        raise RefusedError(f"there is no loss {name!r}: there are {', '.join(LOSSES)}")
    loss = LOSSES[name]
    if missing := sorted((loss.inputs | {"target_tokens"}) - given):
        raise RefusedError(f"{name} needs loss_fn_inputs[{missing[0]!r}] of every datum")
    if unset := sorted(loss.needed - set(config)):
        raise RefusedError(f"{name} needs loss_fn_config[{unset[0]!r}]")
    if unknown := sorted(set(config) - loss.optional - loss.needed):
        known = ", ".join(sorted(loss.optional | loss.needed)) or "none"
        raise RefusedError(f"{name} has no setting loss_fn_config[{unknown[0]!r}]: it has {known}")
    return loss


def _ratio(logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    return torch.exp(logprobs - inputs["logprobs"])
