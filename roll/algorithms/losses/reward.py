"""Losses of reward models: over the scores of pairs of answers, and over the scores of steps with a label."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bradley_terry(chosen: Tensor, rejected: Tensor, margins: Tensor | float = 0.0) -> Tensor:
    """Negative log-likelihood of preferences: ``-log sigmoid(r(chosen) - r(rejected) - m)``.

    Args:
        chosen: ``[pairs]``, scores r of the better answers.
        rejected: ``[pairs]``.
        margins: ``[pairs]`` or one number: m, by how much the better answer is to score higher.

    Returns:
        ``[pairs]``.

    Source: Bradley and Terry 1952; Ouyang et al. 2022, InstructGPT, eq. 1; the margin: Touvron et al. 2023, Llama 2,
    eq. 2.
    """
    return -F.logsigmoid(chosen - rejected - margins)


def centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """What draws scores to 0, which pairs alone leave open: ``(r(chosen) + r(rejected))^2``.

    Args:
        chosen: ``[pairs]``, scores.
        rejected: ``[pairs]``.

    Returns:
        ``[pairs]``.

    Source: Eisenstein et al. 2023, helping or herding, eq. 2.
    """
    return (chosen + rejected).square()


def step_correctness(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of labels of steps: ``-y log sigmoid(l) - (1 - y) log(1 - sigmoid(l))``.

    With labels 0 and 1 this is the cross-entropy of two classes whose logits differ by l.

    Args:
        logits: ``[steps]``, l.
        labels: ``[steps]`` in [0, 1], y: whether a step is right, or how likely it leads to a right answer.

    Returns:
        ``[steps]``.

    Source: Lightman et al. 2023, let's verify step by step, section 2.6; Wang et al. 2024, Math-Shepherd, eq. 2.
    """
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
