"""Losses of the protocol: pure functions of log-probs, sums over the tokens of an example.

Definitions are those of Tinker's documentation, "Loss functions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from roll.service.records import RefusedError

Loss = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, float]], Tensor]
"""Log-probs of the targets, the loss's inputs and its settings; returns the loss of each token. All ``[length]``."""


def cross_entropy(logprobs: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    """Return ``-w · log p`` of each token, ``[length]``."""
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


LOSSES: Final[Mapping[str, tuple[Loss, frozenset[str]]]] = {
    "cross_entropy": (cross_entropy, frozenset()),
    "importance_sampling": (importance_sampling, frozenset({"logprobs", "advantages"})),
    "ppo": (ppo, frozenset({"logprobs", "advantages"})),
    "cispo": (cispo, frozenset({"logprobs", "advantages"})),
}
"""By name, with the inputs that each needs beside the targets."""


def loss_named(name: str, given: frozenset[str]) -> Loss:
    """Return a loss.

    Args:
        name: As the client says it.
        given: Inputs that its examples have.

    Raises:
        RefusedError: There is none of this name, or its inputs are not there.
    """
    if name not in LOSSES:
        raise RefusedError(f"there is no loss {name!r}: there are {', '.join(LOSSES)}")
    loss, needed = LOSSES[name]
    if missing := sorted((needed | {"target_tokens"}) - given):
        raise RefusedError(f"{name} needs loss_fn_inputs[{missing[0]!r}] of every datum")
    return loss


def _ratio(logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    return torch.exp(logprobs - inputs["logprobs"])
