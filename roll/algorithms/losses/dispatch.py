"""The one call with which a pipeline computes a policy loss, whatever its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        extra: Further tensors of the batch by name (``turn_ids``, ``expert``); those it does not need are left out.

    Returns:
        ``(loss [batch, sequence], metrics)``, not aggregated.

    Raises:
        UnknownAlgorithmError: No loss is called ``name``.
        ValueError: An option is unknown, a tensor it needs is missing, or it returned another shape.
    """
    entry = LOSSES.get(name)
    options = dict(options or {})
    entry.check_options(options)
    missing = sorted(need for need in entry.needs if extra.get(need) is None)
    if missing:
        raise ValueError(f"policy_loss {name!r} needs {', '.join(missing)} in the batch; none given.")
    needed = {need: extra[need] for need in entry.needs}
    loss, metrics = entry.function(log_probs, old_log_probs, advantages, mask, **needed, **options)
    if loss.shape != mask.shape:
        raise ValueError(
            f"policy_loss {name!r} returned shape {tuple(loss.shape)}, expected {tuple(mask.shape)}: "
            "return one loss per token, aggregation follows."
        )
    return loss, metrics
