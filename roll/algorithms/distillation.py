"""How far a student's next-token distribution is from a teacher's: over the vocabulary, or over some tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from roll.algorithms.kl import bias_correction
from roll.algorithms.masking import blank

DivergenceKind = Literal["reverse_kl", "forward_kl", "jsd"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A divergence between two distributions, which are given as log-probs.

    With student ``s`` and teacher ``t``: ``reverse_kl`` is ``KL(s || t)``, which keeps the student to what the teacher
    would say; ``forward_kl`` is ``KL(t || s)``, which makes it cover all of that; ``jsd`` is
    ``beta * KL(t || m) + (1 - beta) * KL(s || m)`` with ``m = beta * t + (1 - beta) * s``, which is bounded.

    Attributes:
        kind: Which one.
        beta: Weight of the teacher in the mixture of ``jsd``, between 0 and 1 and neither of them.
        temperature: Both distributions are softened by it before they are compared: who compares divides log-probs by
            it and normalises again. Above 1, what is unlikely counts more. The loss is not multiplied by its square.

    Raises:
        ValueError: The kind is unknown, or ``beta`` or ``temperature`` is out of range.

    Source: Agarwal et al. 2024, On-Policy Distillation of Language Models (arXiv:2306.13649); the temperature: Hinton
    et al. 2015, Distilling the Knowledge in a Neural Network.
    """

    kind: DivergenceKind = "reverse_kl"
    beta: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("reverse_kl", "forward_kl", "jsd"):
            raise ValueError(f"divergence: unknown {self.kind!r}; known: reverse_kl, forward_kl, jsd.")
        if not 0 < self.beta < 1:
            raise ValueError(f"divergence_beta={self.beta}: must lie between 0 and 1. The ends are the two KLs.")
        if self.temperature <= 0:
            raise ValueError(f"kd_temperature={self.temperature}: must be above 0; 1 changes nothing.")

    def __call__(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the divergence ``[...]``, in nats, of log-probs ``[..., outcomes]`` that each sum to 1."""
        if self.kind == "reverse_kl":
            return kullback_leibler(student, teacher)
        if self.kind == "forward_kl":
            return kullback_leibler(teacher, student)
        mixture = torch.logaddexp(teacher + math.log(self.beta), student + math.log1p(-self.beta))
        return self.beta * kullback_leibler(teacher, mixture) + (1 - self.beta) * kullback_leibler(student, mixture)


REVERSE_KL: Final = Divergence()

_SINGLE_ROUNDING: Final = 2.0**-24
"""How far a probability near 1 may be off in single precision."""


def kullback_leibler(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p || q)`` ``[...]`` of log-probs ``[..., outcomes]``; an outcome of probability 0 under p adds 0."""
    weights = p.exp()
    return (weights * (p - q).masked_fill(weights == 0, 0.0)).sum(-1)


def top_k(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` likeliest outcomes of log-probs ``[..., outcomes]``, and the log-probs of the buckets they make.

    Returns:
        ``[..., k]`` int64 and ``[..., k + 1]`` (see :func:`buckets`). With fewer outcomes than ``k``, all of them.
    """
    ids = log_probs.topk(min(k, log_probs.shape[-1]), dim=-1).indices
    return ids, buckets(log_probs, ids)


def buckets(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs of some outcomes, and of all others taken together as one.

    Two distributions over the same buckets have a divergence that is at most the whole one (data processing), and is it
    where the others have the same proportions in both. Nothing is renormalised: mass that a student has outside of what
    a teacher named counts.

    Args:
        log_probs: ``[..., outcomes]``.
        ids: ``[..., k]`` int64, different ones.

    Returns:
        ``[..., k + 1]``, differentiable; the last is ``-inf`` where nothing is left.
    """
    others = log_probs.scatter(-1, ids, float("-inf"))
    return torch.cat((log_probs.gather(-1, ids), others.logsumexp(-1, keepdim=True)), dim=-1)


def with_others(log_probs: Tensor, others: int) -> Tensor:
    """Put the log-prob of all other outcomes together behind those of the likeliest.

    For who knows no more than these: :func:`buckets` sums the others up instead. What the named ones leave of 1 is
    known to the rounding of single precision, in which engines compute. So it counts as at least that, but never as
    more than so many outcomes can have of which none is likelier than the last named one.

    Args:
        log_probs: ``[..., k]``, of the ``k`` likeliest, likeliest first.
        others: How many outcomes are not named.

    Returns:
        ``[..., k + 1]`` float64; the last is ``-inf`` where there are no others.
    """
    log_probs = log_probs.double()
    if not others:
        return torch.nn.functional.pad(log_probs, (0, 1), value=float("-inf"))
    left = (1 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=_SINGLE_ROUNDING).log()
    return torch.cat((log_probs, torch.minimum(left, log_probs[..., -1:] + math.log(others))), dim=-1)


def sampled_reverse_kl(student: Tensor, teacher: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
    """Estimate ``KL(s || t)`` at each token from the one that was sampled there alone.

    ``w * (log s - log t)`` with the weight ``w = s / q`` of a token that was drawn from ``q``. Value and gradient are
    those of the divergence in expectation over ``q``; the gradient is ``w * (log s - log t) * grad log s``.

    Args:
        student: Log-probs of the sampled tokens, ``[batch, sequence]``, of the student that is trained.
        teacher: The same of the teacher.
        sampler: The same of the distribution that they were drawn from.
        mask: ``[batch, sequence]``, nonzero on sampled tokens.

    Returns:
        ``[batch, sequence]``, differentiable; 0 outside the mask.

    Source: Schulman 2020, Approximating KL Divergence (k1); Lu et al. 2025, On-Policy Distillation (Thinking Machines).
    """
    difference = (blank(student, mask) - blank(teacher, mask)).detach()
    return bias_correction(student, sampler, mask) * difference
