"""How far a student's next-token distribution is from a teacher's, over the vocabulary or its likeliest tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

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
