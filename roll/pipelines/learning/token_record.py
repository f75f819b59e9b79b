"""What is kept of what the learner made of sampled tokens, for the review."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from roll.config import RLConfig
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.expert_rows import written_by_expert
from roll.pipelines.learning.loss_scope import loss_mask
from roll.trajectories.learned import Learned, learned_path, write_learned
from roll.trajectories.samples import NO_TURN
from roll.trajectories.store import trajectory_path


def store_learned(config: RLConfig, batch: TrainingBatch, step: int) -> None:
    """Write what the learner made of the tokens of a step, where its trajectories are stored."""
    if config.stores(step):
        write_learned(learned_path(trajectory_path(config.output_dir, step, "train")), _learned(config, batch))


def _learned(config: RLConfig, batch: TrainingBatch) -> Iterator[tuple[str, int, int, Learned]]:
    tensors = batch.tensors
    columns = (
        loss_mask(tensors),
        tensors["advantages"],
        None if config.old_log_probs == "sampler" else tensors["old_log_probs"],
        tensors.get("entropies", None),
    )
    arrays = [None if column is None else column.numpy() for column in columns]
    written = written_by_expert(tensors).tolist()
    for row, sample in enumerate(batch.samples):
        if written[row]:
            continue
        group, _, episode = sample.trajectory.rpartition("/")
        turn_of = tensors["turn_index"][row].numpy()
        sampled = np.flatnonzero(turn_of != NO_TURN)
        numbers = range(sample.first_turn, sample.last_turn + 1)
        # Turns follow one another in a row.
        cuts = np.searchsorted(turn_of[sampled], [*numbers, sample.last_turn + 1]).tolist()
        for turn, span in zip(numbers, pairwise(cuts), strict=True):
            at = sampled[slice(*span)]
            its: list[Any] = [None if array is None else array[row, at] for array in arrays]
            yield group, int(episode), turn, Learned(*its)
