"""The one call with which a pipeline computes a policy loss, whatever its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.registry import LOSSES


def compute(
    name: str,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    options: Mapping[str, Any] | None = None,
    **extra: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Compute the policy loss registered as ``name``.

    Args:
        name: The configuration's ``policy_loss``.
        log_probs: ``[batch, sequence]``, of the policy being trained.
        old_log_probs: ``[batch, sequence]``, of the policy at the start of the step.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        options: Only options that the loss reads; :func:`roll.algorithms.registry.used_options` selects them.
        extra: Further tensors of the batch by name (``turn_ids``, ``expert``, and what :func:`prepare` returned); those
            it does not read are left out.

    Returns:
        ``(loss [batch, sequence], metrics)``, not aggregated.

    Raises:
        UnknownNameError: No loss is called ``name``.
        ValueError: An option is unknown, a tensor it needs is missing, or it returned another shape.
    """
    entry = LOSSES.get(name)
    options = dict(options or {})
    entry.check_options(options)
    missing = sorted(need for need in entry.needs if extra.get(need) is None)
    if missing:
        raise ValueError(f"policy_loss {name!r} needs {', '.join(missing)} in the batch; none given.")
    needed = {name: extra[name] for name in entry.needs | entry.uses if extra.get(name) is not None}
    loss, metrics = entry.function(log_probs, old_log_probs, advantages, mask, **needed, **options)
    if loss.shape != mask.shape:
        raise ValueError(
            f"policy_loss {name!r} returned shape {tuple(loss.shape)}, expected {tuple(mask.shape)}: "
            "return one loss per token, aggregation follows."
        )
    return loss, metrics


@torch.no_grad()
def prepare(
    name: str,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    options: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Compute what the policy loss ``name`` decides over all tokens of an optimiser step, before the step is split.

    Args:
        name: The configuration's ``policy_loss``.
        old_log_probs: ``[batch, sequence]``, of the policy at the start of the step.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        options: As in :func:`compute`.
        generator: Source of what is drawn.

    Returns:
        Tensors ``[batch, sequence]`` by name, for :func:`compute`; most losses have none.

    Raises:
        UnknownNameError: No loss is called ``name``.
    """
    given = {**(options or {}), "generator": generator}
    tensors = {}
    for tensor, function in LOSSES.get(name).whole_step.items():
        read = inspect.signature(function).parameters
        chosen = {option: value for option, value in given.items() if option in read}
        tensors[tensor] = function(old_log_probs, advantages, mask, **chosen)
    return tensors
