"""Asking several teachers: each of the rows that it teaches, and what they say side by side in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.pipelines.roles.models import ScoreRole
from roll.strategies.training.comparing import BUCKETS, HEAD, IDS, STATES
from roll.strategies.training.distilled import TEACHER_LOG_PROBS


async def ask(
    teachers: Sequence[ScoreRole], batch: TensorDict, top_k: int | None, *, sampled_only: bool = False
) -> None:
    """Let teachers say what they say of a batch (:mod:`roll.strategies.training.comparing`), in place.

    Args:
        teachers: In the order of their numbers.
        batch: ``ref_head`` ``[batch]`` has the number of the teacher of each row.
        top_k: How many tokens they name; ``None``: hidden states, for the whole vocabulary.
        sampled_only: They say nothing but the log-probs of the tokens that are there
            (:data:`roll.strategies.training.distilled.TEACHER_LOG_PROBS`).
    """
    for number, teacher in enumerate(teachers):
        rows = (batch[HEAD] == number).nonzero().squeeze(-1)
        if not len(rows):
            continue
        part = batch[rows]
        if sampled_only:
            said = await teacher.compute_log_probs(part)
            batch[TEACHER_LOG_PROBS] = batch.get(TEACHER_LOG_PROBS, said.new_zeros(batch["input_ids"].shape))
            batch[TEACHER_LOG_PROBS][rows, : said.shape[1]] = said
        elif top_k is None:
            _fill(batch, STATES, rows, await teacher.compute_states(part))
        else:
            ids, buckets = await teacher.compute_top(part, top_k)
            _fill(batch, IDS, rows, ids)
            _fill(batch, BUCKETS, rows, buckets)


def _fill(batch: TensorDict, name: str, rows: Tensor, values: Tensor) -> None:
    """Put ``values`` ``[rows, sequence, width]`` into rows of a column, which becomes as wide as its widest teacher."""
    width, column = values.shape[-1], batch.get(name, None)
    if column is None:
        column = values.new_zeros(*batch["input_ids"].shape, width)
    if column.shape[-1] < width:
        column = torch.nn.functional.pad(column, (0, width - column.shape[-1]))
    column[rows, : values.shape[1], :width] = values
    batch[name] = column
