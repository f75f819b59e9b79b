"""The learner in a process of its own: large steps go from environments to it, and from it to the ranks that train."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from transformers import PreTrainedTokenizerBase

from roll.algorithms.groups import AlgorithmWarning
from roll.config import RLConfig
from roll.data.prompts import Prompt
from roll.experience.base import ExperienceStore
from roll.experience.outlines import SealedStore
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.expert_rows import Answers, Experts, Ungraded
from roll.pipelines.learning.learner import Learner
from roll.pipelines.reporting.review import store, write_evaluation
from roll.pipelines.roles.models import ScoreRole, TrainRole
from roll.tracking import NullProgress
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.sealed import Contents, Parcel, SealedTrajectory, opened
from roll.trajectories.shelf import Shelf
from roll.trajectories.store import Phase
from roll.workers.loading import Text, load_text
from roll.workers.setup import Registered, set_up

_PROMPTS_KEPT: Final = 1024
"""Prompts whose tokens are kept for the next member of their group."""

_WORD_TAKES: Final = 60.0
"""Seconds that it takes at most until the driver has word of an episode that was put here."""


@dataclass(kw_only=True)
class Models:
    """The models that the learner asks and changes; see :class:`roll.pipelines.learning.learner.LearningModels`."""

    trainer: TrainRole
    critic: TrainRole | None
    reference: ScoreRole | None
    tokenizer: PreTrainedTokenizerBase = cast(PreTrainedTokenizerBase, None)


class LearnerWorker:
    """Keeps what is read and the contents of episodes, and learns from groups of them.

    It carries nothing from step to step.

    Args:
        config: The run.
        registered: What user code registered in the driver.
        models: The models; they are in processes of their own.
        sample_mode: One sample per trajectory, or one per turn.
        compare_seats: Whom a seat of a game is compared with.
        prompts: Make the prompts of the run, where it has some.
        experts: What is learned from beside the trajectories.
        answers: What experts answered to the same prompts.
    """

    def __init__(
        self,
        config: RLConfig,
        registered: Registered,
        models: Models,
        sample_mode: Literal["trajectory", "step"],
        compare_seats: Literal["seat", "game"],
        prompts: Mapping[Phase, Callable[[Text], Sequence[Prompt]]],
        experts: Experts | None = None,
        answers: Answers | None = None,
    ) -> None:
        set_up(config, registered)
        self._config = config
        self._text = load_text(config)
        self._shelf = Shelf()
        self._outlined: SealedStore | None = None
        models = replace(models, tokenizer=self._text.tokenizer)
        self._learner = Learner(config, models, NullProgress(), sample_mode, experts, answers, compare_seats)
        self._batch: TrainingBatch | None = None
        self._tables = {phase: make(self._text) for phase, make in prompts.items()}
        self._prompts = {phase: lru_cache(_PROMPTS_KEPT)(each.__getitem__) for phase, each in self._tables.items()}

    async def prompt(self, row: int, phase: Phase) -> Prompt:
        """Return the prompt of a row of those for training, or for evaluations."""
        return self._prompts[phase](row)

    async def ungraded(self, groups: Sequence[TrajectoryGroup]) -> list[Ungraded]:
        """Return answers of experts that join groups, and whose scores nobody knows."""
        answers = self._learner.answers
        return [] if answers is None else answers.ungraded(groups, self._tables["train"], self._opened)

    async def spoken_by_expert(self, number: int) -> list[int]:
        """Return the tokens of an answer of an expert."""
        assert self._learner.answers is not None, "ungraded comes first"
        return self._learner.answers.spoken(number)

    async def note(self, scores: Mapping[int, float | None]) -> None:
        """Take note of what answers of experts earned."""
        if self._learner.answers is not None:
            self._learner.answers.note(scores)

    async def hold(self, contents: Contents) -> int:
        """Keep the contents of an episode; return their number."""
        return self._shelf.put(contents)

    async def contents(self, numbers: Sequence[int]) -> list[Contents]:
        """Return the contents of episodes."""
        return self._shelf.get(numbers)

    async def forget(self, wanted: set[int]) -> None:
        """Drop contents of episodes, where nothing learns from them here (:meth:`take` does it else).

        Args:
            wanted: The numbers of all episodes that the driver has.
        """
        # Between two calls of take lies a step of the trainer, between two of these perhaps nothing.
        self._shelf.keep_only(wanted, apart=_WORD_TAKES)

    async def open_store(self, opens: Callable[[], ExperienceStore], place: Callable[[int], Parcel]) -> bool:
        """Open an experience store.

        Args:
            opens: Opens it.
            place: Says where contents are, whose number is given, to other processes.

        Returns:
            Whether it keeps files of trajectories.
        """

        async def put(contents: Contents) -> Parcel:
            return place(self._shelf.put(contents))

        self._outlined = SealedStore(await asyncio.to_thread(opens), self._opened, put)
        return self._outlined.keeps_files

    async def ask_store(self, name: str, *arguments: Any) -> Any:
        """Return what a method of the store returns, or one of its properties is; groups come and go as outlines."""
        assert self._outlined is not None, "open_store comes first"
        return await self._outlined.ask(name, *arguments)

    async def store(self, groups: Sequence[TrajectoryGroup], step: int, there: Path | None = None) -> Path | None:
        """Write the trajectories of a step as parquet; return the file, where one was due.

        Args:
            groups: The groups.
            step: The step.
            there: A file that has exactly these groups as those of this step already.
        """
        return store(self._config, self._whole(groups), step, "train", self._text.token_text, there)

    async def write_evaluation(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Write the trajectories of an evaluation, and its review."""
        write_evaluation(self._config, self._whole(groups), step, self._text.token_text)

    async def take(self, groups: Sequence[TrajectoryGroup], wanted: set[int]) -> None:
        """Make the batch of a step of groups.

        Args:
            groups: The groups.
            wanted: The numbers of all episodes that the driver has, these among them; of others, the contents go.

        Raises:
            RolloutError: If nothing is left to train on.
        """
        self._batch = None  # before the next one: they are large
        self._shelf.keep_only(wanted)
        self._batch = self._learner.make_batch(groups, partial(self._opened, as_arrays=True))

    async def score(self) -> dict[str, float]:
        """Ask the models about the batch; return metrics."""
        return await self._learner.score(self._taken)

    async def assign(self, credit: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any], list[str]]:
        """Give the tokens of the batch their credit.

        Args:
            credit: What credit assignment carried over from the step before.

        Returns:
            Metrics; what it carries over to the next step; what the maths warns about.
        """
        self._learner.credit.load_state_dict(credit)
        with _noted() as words:
            metrics = self._learner.assign(self._taken)
        return metrics, self._learner.credit.state_dict(), words

    async def update(
        self, step: int, experts: dict[str, Any] | None
    ) -> tuple[dict[str, float], dict[str, Any] | None, list[str]]:
        """Take the optimiser steps of a training step, and store what is kept of them.

        Args:
            step: The step.
            experts: Which rows of experts were taken before, if there are experts.

        Returns:
            Metrics; which were taken now; what the maths warns about.
        """
        learner = self._learner
        if learner.experts is not None and experts is not None:
            learner.experts.restore(experts)
        # Written while the trainers work; what experts wrote joins the batch meanwhile, and is not kept.
        kept = asyncio.create_task(asyncio.to_thread(learner.keep, replace(self._taken), step))
        try:
            with _noted() as words:
                metrics = await learner.update(self._taken, step)
        finally:
            await kept
        self._batch = None
        return metrics, None if learner.experts is None else learner.experts.state(), words

    @property
    def _taken(self) -> TrainingBatch:
        assert self._batch is not None, "take comes first"
        return self._batch

    def _whole(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return [replace(each, trajectories=[self._opened(one) for one in each.trajectories]) for each in groups]

    def _opened(self, member: Trajectory, as_arrays: bool = False) -> Trajectory:
        if not isinstance(member, SealedTrajectory):
            return member
        (contents,) = self._shelf.get([member.parcel.number])
        return opened(member, contents, as_arrays=as_arrays)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Yield a list that has what the maths warned about afterwards."""
    words: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AlgorithmWarning)
        yield words
    words += [str(item.message) for item in caught if issubclass(item.category, AlgorithmWarning)]
