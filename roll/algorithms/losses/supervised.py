"""The loss that imitates answers."""

from __future__ import annotations

from torch import Tensor

from roll.algorithms.losses.ratio import Metrics
from roll.algorithms.masking import blank, masked_mean
from roll.algorithms.registry import register_loss


def sft(log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood: ``-log pi`` on the mask.

    Args:
        log_probs: ``[batch, sequence]``.
        mask: ``[batch, sequence]``.

    Returns:
        ``(loss [batch, sequence], metrics)``; the metric ``nll`` is the mean per token in nats.

    Source: Ouyang et al. 2022, InstructGPT (supervised fine-tuning).
    """
    loss = -blank(log_probs, mask)
    return loss, {"nll": masked_mean(loss.detach(), mask)}


@register_loss("sft")
def _sft(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    return sft(log_probs, mask)
