"""An expert's answers to the prompts that the policy answers: each joins the group of its prompt."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from roll.data.supervised import DemonstrationTable
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.samples import NO_TURN, Sample, is_trainable

Tokens = tuple[np.ndarray, np.ndarray]


class ExpertAnswers:
    """What experts answered, by prompt (:class:`roll.pipelines.learning.expert_rows.Answers`).

    Args:
        table: What was read. A row whose chat template makes several sequences of it answers no prompt.
        score: What an answer of an expert earned.
    """

    def __init__(self, table: DemonstrationTable, score: float) -> None:
        self.score = score
        self._answers: dict[tuple[int, ...], list[Tokens]] = defaultdict(list)
        for row in range(len(table)):
            sequences = table.sequences(row)
            if len(sequences) == 1:
                ids, trained = sequences[0]
                self._answers[tuple(ids[: int(trained.argmax())].tolist())].append(sequences[0])

    def samples(self, groups: Sequence[TrajectoryGroup]) -> Iterator[Sample]:
        """Yield an answer for every group whose prompt an expert has answered; of several the group's name decides."""
        for group in groups:
            member = next((one for one in group.trajectories if is_trainable(one)), None)
            found = self._answers.get(tuple(member.turns[0].prompt_ids), []) if member is not None else []
            if found:
                chosen = found[zlib.crc32(group.group_id.encode()) % len(found)]
                yield _sample(group, *chosen, self.score)


def _sample(group: TrajectoryGroup, ids: np.ndarray, trained: np.ndarray, score: float) -> Sample:
    rewards = np.zeros(len(ids))
    rewards[np.flatnonzero(trained)[-1]] = score
    nothing: list[Any] = [0] * len(ids)
    return Sample(
        trajectory=f"{group.group_id}/expert",
        tag=group.tag,
        group_id=group.group_id,
        first_turn=0,
        last_turn=0,
        policy_version=(0, 0),
        token_ids=ids.tolist(),
        response_mask=trained.astype(int).tolist(),
        logprobs=[0.0] * len(ids),
        rewards=rewards.tolist(),
        turn_index=np.where(trained, 0, NO_TURN).tolist(),
        state_hash=nothing,
    )
