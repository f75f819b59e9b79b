"""Keeps the entropies that a trainer computes for the loss anyway, token by token, for the review."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.pipelines.learning.objective import PolicyObjective
from roll.strategies.base import BatchTotals

_ROW = "row"
"""``[batch]`` of a mini-batch: which row of the step's batch it is."""


@contextmanager
def keeping_entropies(
    objective: PolicyObjective, batch: TensorDict, kept: bool
) -> Iterator[PolicyObjective | EntropyRecorder]:
    """Yield what to minimise; if they are ``kept``, the batch of the step has ``entropies`` afterwards."""
    if not kept:
        yield objective
        return
    recorder = EntropyRecorder(objective, batch)
    yield recorder
    recorder.finish(batch)


class EntropyRecorder:
    """The policy objective, which also keeps the entropies that it is called with.

    Only for a trainer in this process: one elsewhere is given a copy, which nobody asks afterwards.

    Args:
        objective: What is minimised.
        batch: The batch of the step; until :meth:`finish` its rows are numbered.
    """

    def __init__(self, objective: PolicyObjective, batch: TensorDict) -> None:
        self._objective = objective
        self._entropies = torch.full(batch["input_ids"].shape, torch.nan)
        batch[_ROW] = torch.arange(len(batch))

    @property
    def needs_entropy(self) -> bool:
        """Always."""
        return True

    def prepare(self, batch: TensorDict, generator: torch.Generator) -> None:
        """See :meth:`PolicyObjective.prepare`."""
        self._objective.prepare(batch, generator)

    def totals(self, batch: TensorDict) -> BatchTotals:
        """See :meth:`PolicyObjective.totals`."""
        return self._objective.totals(batch)

    def contributing_rows(self, batch: TensorDict) -> Tensor | None:
        """See :meth:`PolicyObjective.contributing_rows`."""
        return self._objective.contributing_rows(batch)

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and keep the entropies of these rows; of several epochs those of the last.

        Args:
            log_probs: ``[rows, sequence]``.
            entropy: The same, in nats.
            batch: The rows of a micro-batch.
            totals: What the loss is divided by.
        """
        # A trainer of somebody else's may give a loss only what it knows that losses read.
        if entropy is not None and _ROW in batch.keys():
            kept = entropy.detach().float().masked_fill(~batch["response_mask"].bool(), torch.nan).cpu()
            self._entropies[batch[_ROW].cpu(), : kept.shape[1]] = kept
        return self._objective(log_probs, entropy, batch, totals)

    def finish(self, batch: TensorDict) -> None:
        """Write ``entropies`` ``[batch, sequence]`` (nats) into the batch of the step, not a number where none was.

        None was computed of rows without a gradient, such as groups whose members all earned the same.
        """
        del batch[_ROW]
        batch["entropies"] = self._entropies
