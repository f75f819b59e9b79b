"""What a step learns from: trajectories -> samples -> a padded batch, cut into the batches of optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
import torch
from tensordict import TensorDict

from roll.schedulers.groups import RolloutError
from roll.trajectories.batch import collate
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup
from roll.trajectories.samples import Sample, is_trainable, outline, samples_from


@dataclass(slots=True)
class TrainingBatch:
    """What one step learns from.

    Attributes:
        tensors: The padded samples (see :func:`roll.trajectories.batch.collate`).
        samples: The same as lists.
        scores: The score of each sample's trajectory.
        truncated: Whether that trajectory was cut off at a length limit.
        baselines: The score of the greedy member of its group; ``None`` where groups have none.
    """

    tensors: TensorDict
    samples: list[Sample]
    scores: list[float]
    truncated: list[bool]
    baselines: list[float] | None


def training_batch(
    groups: Sequence[TrajectoryGroup],
    sample_mode: Literal["trajectory", "step"],
    *,
    max_length: int,
    pad_token_id: int,
    answers: Sequence[Sample] | None = None,
    compare_seats: Literal["seat", "game"] = "seat",
    open_member: Callable[[Trajectory], Trajectory] | None = None,
) -> TrainingBatch:
    """Turn trajectories into a padded batch; those that broke are left out.

    Args:
        groups: The trajectories.
        sample_mode: One sample per trajectory, or one per turn.
        max_length: Longest sample allowed, in tokens.
        pad_token_id: Fills rows behind their end.
        answers: Samples of experts that join these groups, below those of the trajectories; the batch then says which
            rows they are (``expert``).
        compare_seats: Whom a seat of a game is compared with: the same seat of the group's other games, or all.
        open_member: Fetches what a sealed trajectory has elsewhere. One after the other is open then, and the samples
            that are returned have no tokens of their own.

    Raises:
        RolloutError: If nothing is left to train on.
    """
    batch = TrainingBatch(TensorDict({}, batch_size=[]), [], [], [], None)
    baselines: list[float] = []
    for group, trajectory in _members(groups):
        if not is_trainable(trajectory):
            continue
        whole = trajectory if open_member is None else open_member(trajectory)
        samples = samples_from(whole, sample_mode, max_length=max_length)
        if compare_seats == "game":
            for sample in samples:
                sample.group_id = group.group_id
        batch.samples += samples
        batch.scores += [trajectory.score or 0.0] * len(samples)
        batch.truncated += [trajectory.status is Status.TRUNCATED_LENGTH] * len(samples)
        baselines += [_baseline(group)] * len(samples)
    if not batch.samples:
        reason = next((t.error for _, t in _members(groups) if t.error), "no turn was played")
        raise RolloutError(f"No episode has a turn to train on. The first: {reason}")
    batch.baselines = baselines if any(group.baseline is not None for group in groups) else None
    own = len(batch.samples)
    batch.samples += answers or ()
    batch.scores += [sum(answer.rewards) for answer in answers or ()]
    batch.truncated += [False] * len(answers or ())
    batch.tensors = collate(batch.samples, pad_token_id)
    if open_member is not None:
        batch.samples = [outline(sample) for sample in batch.samples]
    if answers is not None:
        batch.tensors["expert"] = torch.arange(len(batch.samples)) >= own
    return batch


def mini_batches(batch: TensorDict, count: int, key: Sequence[int]) -> Iterator[TensorDict]:
    """Yield ``count`` parts of the batch in an order that ``key`` alone decides.

    Rows that belong together (the column ``pair``) stay so. Of rows that an expert wrote (the column ``expert``) every
    part has its share.
    """
    drawn = np.random.default_rng(list(key))
    for parts in zip(*(_parts(rows, batch, count, drawn) for rows in _kinds(batch)), strict=True):
        rows = np.concatenate(parts)
        if len(rows):
            yield batch[torch.from_numpy(rows)]


def _kinds(batch: TensorDict) -> list[np.ndarray]:
    """Return the numbers of the rows that were sampled, and of those that an expert wrote, if there are such."""
    written = batch.get("expert", None)
    if written is None:
        return [np.arange(len(batch))]
    return [np.flatnonzero(~written.numpy()), np.flatnonzero(written.numpy())]


def _parts(rows: np.ndarray, batch: TensorDict, count: int, drawn: np.random.Generator) -> list[np.ndarray]:
    """Shuffle rows, or those that belong together, and cut them into so many parts."""
    pairs = batch.get("pair", None)
    if pairs is None:
        return np.array_split(rows[drawn.permutation(len(rows))], count)
    of_row = pairs.numpy()[rows]
    parts = np.array_split(drawn.permutation(np.unique(of_row)), count)
    return [rows[np.isin(of_row, part)] for part in parts]


def _baseline(group: TrajectoryGroup) -> float:
    """Return the score of the greedy member; where that one broke, the mean of the others stands in for it."""
    return fmean(group.scores) if group.baseline is None else group.baseline


def _members(groups: Sequence[TrajectoryGroup]) -> Iterator[tuple[TrajectoryGroup, Trajectory]]:
    for group in groups:
        for trajectory in group.trajectories:
            yield group, trajectory
