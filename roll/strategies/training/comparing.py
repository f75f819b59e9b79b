"""What the distributions of a trained model are compared with: those of frozen models, at every trained token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from roll.algorithms.distillation import REVERSE_KL, Divergence, buckets

STATES, HEAD, IDS, BUCKETS = "ref_states", "ref_head", "ref_ids", "ref_buckets"
COLUMNS: Final = (STATES, HEAD, IDS, BUCKETS)
"""Columns of a batch that say what to compare with.

``ref_states`` ``[batch, sequence, hidden]``, the states of a frozen model before each token, with ``ref_head``
``[batch]``, the number of its output layer (without: the first); or ``ref_ids`` ``[batch, sequence, k]`` and
``ref_buckets`` ``[batch, sequence, k + 1]``, its likeliest tokens and log-probs
(:func:`roll.algorithms.distillation.buckets`).
"""


class Reference(NamedTuple):
    """What a divergence is measured from.

    Attributes:
        columns: Each ``[batch, sequence, ...]``, read at trained tokens.
        measure: From log-probs ``[n, vocabulary]`` and these columns ``[n, ...]`` to divergences ``[n]``.
    """

    columns: tuple[Tensor, ...]
    measure: Callable[..., Tensor]


class Comparison:
    """How a trained model is compared with frozen ones.

    Args:
        temperature: Logits of both are divided by it.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.heads: tuple[nn.Module, ...] = ()
        self.divergence: Divergence = REVERSE_KL
        self.temperature = temperature

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Take the output layers of the frozen models, and the divergence."""
        self.heads, self.divergence = heads, divergence

    def reference(self, columns: Mapping[str, Tensor] | None) -> Reference | None:
        """Return what a micro-batch with these :data:`COLUMNS` is measured from; ``None`` where it has none.

        Args:
            columns: ``[batch, ...]`` each, by name.
        """
        if not columns:
            return None
        if IDS in columns:
            return Reference((columns[IDS], columns[BUCKETS]), self._from_buckets)
        states = columns[STATES]
        which = columns.get(HEAD)
        rows = torch.zeros_like(states[:, 0, 0], dtype=torch.int64) if which is None else which
        return Reference((states, rows.unsqueeze(1).expand(states.shape[:2])), self._from_states)

    def _from_states(self, log_probs: Tensor, states: Tensor, which: Tensor) -> Tensor:
        if len(self.heads) == 1:
            return self._whole(log_probs, states, self.heads[0])
        found = log_probs.new_zeros(len(log_probs))
        for number, head in enumerate(self.heads):
            rows = (which == number).nonzero().squeeze(-1)
            if len(rows):
                # States of narrower models are filled up behind their end.
                width = int(head.weight.shape[1])  # type: ignore[index]
                found = found.index_copy(0, rows, self._whole(log_probs[rows], states[rows, :width], head))
        return found

    def _whole(self, log_probs: Tensor, states: Tensor, head: nn.Module) -> Tensor:
        """Compare over the whole vocabulary, or as much of it as both have: models fill theirs up differently."""
        with torch.no_grad():
            # A teacher may be stored in another precision than its states travel in.
            logits = head(states.to(next(head.parameters()).dtype))
            shared = min(logits.shape[-1], log_probs.shape[-1])
            teacher = log_softmax(logits[:, :shared], self.temperature * self.divergence.temperature)
        known = log_probs.shape[-1] == shared and self.divergence.temperature == 1.0
        student = log_probs if known else log_softmax(log_probs[:, :shared], self.divergence.temperature)
        return self.divergence(student, teacher)

    def _from_buckets(self, log_probs: Tensor, ids: Tensor, teacher: Tensor) -> Tensor:
        teacher = teacher.to(log_probs.dtype)
        if self.divergence.temperature != 1.0:
            log_probs = log_softmax(log_probs, self.divergence.temperature)
        if ids.shape[-1] == log_probs.shape[-1]:  # nothing is left for the last bucket
            return self.divergence(log_probs.gather(-1, ids), teacher[:, :-1])
        return self.divergence(buckets(log_probs, ids), teacher)


def compared_columns(micro: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return those of :data:`COLUMNS` that a micro-batch has, ``[batch, ...]`` each; ``None`` if it is not compared."""
    here = {name: micro.get(name, None) for name in COLUMNS}
    found = {name: column for name, column in here.items() if column is not None}
    return found if STATES in found or IDS in found else None


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Return log-probs ``[n, vocabulary]``, in at least fp32 whatever the weights are stored in."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits / temperature if temperature != 1.0 else logits, dim=-1)
