"""An expert's answers to the prompts that the policy answers: each joins the group of its prompt."""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.data.prompts import Prompt, first_rows
from roll.data.supervised import DemonstrationTable
from roll.pipelines.learning.expert_rows import Open, Ungraded
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
        self._row_of: dict[tuple[int, ...], int] | None = None
        self._answers: list[ExpertAnswer] = []
        self._by_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row in range(len(table)):
            sequences = table.sequences(row)
            if len(sequences) == 1:
                answer = ExpertAnswer(*sequences[0], score)
                self._by_prompt[tuple(answer.prompt)].append(len(self._answers))
                self._answers.append(answer)

    async def grade(self, groups: Sequence[TrajectoryGroup], grades: Grades) -> None:
        """Find out what the answers that join these groups earned, each once in a run."""

        async def graded(group: TrajectoryGroup, answer: ExpertAnswer) -> None:
            answer.score = await grades(answer, group)

        unknown = self._unknown(groups)
        await asyncio.gather(*(graded(group, self._answers[number]) for number, group in unknown.items()))

    def ungraded(
        self, groups: Sequence[TrajectoryGroup], prompts: Sequence[Prompt], open_member: Open
    ) -> list[Ungraded]:
        """Return the answers that :meth:`grade` would have graded, each with the row of its prompt.

        Args:
            groups: The groups.
            prompts: Those of training. An answer to another one is left out.
            open_member: Returns an episode whole.
        """
        unknown = self._unknown(groups, open_member)
        if unknown and self._row_of is None:
            self._row_of = first_rows(prompts)
        rows = {number: (self._row_of or {}).get(tuple(self._answers[number].prompt)) for number in unknown}
        return [
            Ungraded(number, row, prompts[row].domain, unknown[number].group_id)
            for number, row in rows.items()
            if row is not None
        ]

    def spoken(self, number: int) -> list[int]:
        """Return the tokens of an answer."""
        return self._answers[number].spoken

    def note(self, scores: Mapping[int, float | None]) -> None:
        """Take note of what answers earned, by number."""
        for number, score in scores.items():
            self._answers[number].score = score

    def samples(self, groups: Sequence[TrajectoryGroup], open_member: Open | None = None) -> Iterator[Sample]:
        """Yield an answer for every group whose prompt an expert has answered, if its score is known."""
        for group, number in self._joining(groups, open_member):
            answer = self._answers[number]
            if answer.score is not None:
                yield _sample(group, answer.ids, answer.trained, answer.score)

    def _unknown(
        self, groups: Sequence[TrajectoryGroup], open_member: Open | None = None
    ) -> dict[int, TrajectoryGroup]:
        joining = self._joining(groups, open_member)
        return {number: group for group, number in joining if self._answers[number].score is None}

    def _joining(
        self, groups: Sequence[TrajectoryGroup], open_member: Open | None
    ) -> Iterator[tuple[TrajectoryGroup, int]]:
        """Yield groups with what an expert answered to their prompts; of several answers the group's name decides."""
        for group in groups:
            member = next((one for one in group.trajectories if is_trainable(one)), None)
            if member is None:
                continue
            whole = member if open_member is None else open_member(member)
            found = self._by_prompt.get(tuple(map(int, whole.turns[0].prompt_ids)), [])
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
