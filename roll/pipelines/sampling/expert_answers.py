"""An expert's answers to the prompts that the policy answers: each joins the group of its prompt."""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.data.supervised import DemonstrationTable
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.samples import NO_TURN, Sample, is_trainable


@dataclass(slots=True, eq=False)
class ExpertAnswer:
    """What an expert answered to a prompt.

    Attributes:
        ids: Tokens of prompt and answer.
        trained: Which of them are the answer.
        score: What it earned; ``None`` as long as nobody knows.
    """

    ids: np.ndarray
    trained: np.ndarray
    score: float | None

    @property
    def prompt(self) -> list[int]:
        """Tokens before the answer."""
        found: list[int] = self.ids[: int(self.trained.argmax())].tolist()
        return found

    @property
    def spoken(self) -> list[int]:
        """Tokens from the answer on."""
        found: list[int] = self.ids[int(self.trained.argmax()) :].tolist()
        return found


Grades = Callable[[ExpertAnswer, TrajectoryGroup], Awaitable[float | None]]
"""Says what an answer to the prompt of a group earns; ``None`` where no verifier could say."""


class ExpertAnswers:
    """What experts answered, by prompt (:class:`roll.pipelines.learning.expert_rows.Answers`).

    Args:
        table: What was read. A row whose chat template makes several sequences of it answers no prompt.
        score: What an answer of an expert earned; ``None``: what :meth:`grade` finds.
    """

    def __init__(self, table: DemonstrationTable, score: float | None) -> None:
        self._answers: dict[tuple[int, ...], list[ExpertAnswer]] = defaultdict(list)
        for row in range(len(table)):
            sequences = table.sequences(row)
            if len(sequences) == 1:
                answer = ExpertAnswer(*sequences[0], score)
                self._answers[tuple(answer.prompt)].append(answer)

    async def grade(self, groups: Sequence[TrajectoryGroup], grades: Grades) -> None:
        """Find out what the answers that join these groups earned, each once in a run."""

        async def graded(group: TrajectoryGroup, answer: ExpertAnswer) -> None:
            answer.score = await grades(answer, group)

        unknown = {answer: group for group, answer in self._joining(groups) if answer.score is None}
        await asyncio.gather(*(graded(group, answer) for answer, group in unknown.items()))

    def samples(self, groups: Sequence[TrajectoryGroup]) -> Iterator[Sample]:
        """Yield an answer for every group whose prompt an expert has answered, if its score is known."""
        for group, answer in self._joining(groups):
            if answer.score is not None:
                yield _sample(group, answer.ids, answer.trained, answer.score)

    def _joining(self, groups: Sequence[TrajectoryGroup]) -> Iterator[tuple[TrajectoryGroup, ExpertAnswer]]:
        """Yield groups with what an expert answered to their prompts; of several answers the group's name decides."""
        for group in groups:
            member = next((one for one in group.trajectories if is_trainable(one)), None)
            found = self._answers.get(tuple(member.turns[0].prompt_ids), []) if member is not None else []
            if found:
                yield group, found[zlib.crc32(group.group_id.encode()) % len(found)]


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
