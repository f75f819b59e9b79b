"""Reinforcement learning from what a run samples."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from roll.config import RLConfig
from roll.data.supervised import load_demonstrations
from roll.data.table import PromptTable
from roll.distributed import Cluster
from roll.experience.errors import StoreError
from roll.pipelines.learning.elsewhere import LearnerElsewhere
from roll.pipelines.learning.learner import Learner
from roll.pipelines.modes.choosing import mode_of
from roll.pipelines.modes.mode import Mode
from roll.pipelines.sampled import SampledRun
from roll.pipelines.sampling.answers_elsewhere import Elsewhere
from roll.pipelines.sampling.data_sections import data_faults_at
from roll.pipelines.sampling.demonstrations import describe, encode
from roll.pipelines.sampling.expert_answers import ExpertAnswers
from roll.pipelines.sampling.experts import ExpertRows
from roll.pipelines.sampling.prompt_data import PromptData, prompts_elsewhere
from roll.pipelines.sampling.stream import Groups, Source
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.store import Phase
from roll.workers.loading import Text

Config = TypeVar("Config", bound=RLConfig)


class RLPipeline(SampledRun[Config]):
    """A run that learns from the scores of what it samples. A pipeline says what (``stream``) and what is evaluated.

    What a step samples and learns from is a matter of its ``mode``: see :mod:`roll.pipelines.modes`.
    """

    fails_with = (*SampledRun.fails_with, StoreError)

    mode: Mode
    experts: ExpertRows | None = None
    answers: ExpertAnswers | None = None
    _written: Sequence[str] = ()

    def read_data(self, text: Text) -> None:
        """Read what experts wrote, if anything, before a model loads.

        Raises:
            ConfigError: If it cannot be used.
        """
        expert = self.config.expert
        if expert is None:
            return
        with data_faults_at("expert.data_args"):
            table = load_demonstrations(expert.data_args, expert, self.config.sequence_length, partial(encode, text))
        self._written = describe("expert", table)
        if expert.join == "groups":
            self.answers = ExpertAnswers(table, None if expert.score == "graded" else expert.score)
        else:
            self.experts = ExpertRows.of(self.config, table, int(text.tokenizer.pad_token_id or 0))

    async def share_learning(self, cluster: Cluster, data: PromptData | None) -> Elsewhere | None:
        """Let a worker learn where tokens are not to go through this process."""
        if not self.config.learns_elsewhere:
            return None
        assert isinstance(self.learner, Learner)
        config: Any = self.config  # one that has prompts has their keys
        tables: dict[Phase, PromptTable | None] = {} if data is None else {"train": data.train.table, "val": data.val}
        prompts = {phase: prompts_elsewhere(config, each, phase) for phase, each in tables.items() if each is not None}
        self.learner = shared = await LearnerElsewhere.start(cluster, self.learner, self.core.registered, prompts)
        return Elsewhere(shared.parcels, shared.prompts)

    async def store_groups(self, groups: Sequence[TrajectoryGroup], step: int) -> Path | None:
        """Write the trajectories of a step where they are."""
        if isinstance(self.learner, LearnerElsewhere):
            if not self.mode.learns:
                await self.learner.forget()
            return await self.learner.store(groups, step, self.stored_file(step))
        return await super().store_groups(groups, step)

    async def write_evaluation(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Store an evaluation where its episodes are, and write its review there."""
        if isinstance(self.learner, LearnerElsewhere):
            await self.learner.write_evaluation(groups, step)
        else:
            await super().write_evaluation(groups, step)

    def domains(self) -> dict[str, str]:
        """Return the domain of each tag of prompts."""
        return {}

    def give_groups(self, sources: Sequence[Source]) -> None:
        """Set up what gives each step its groups, and what shows and counts them, as the mode says."""
        self.mode = mode_of(self.config)(self, self.domains())
        super().give_groups(self.mode.sources(sources))

    def make_stream(self, sources: Sequence[Source]) -> Groups:
        """Return what gives each step its groups: what is sampled, or a store."""
        per_step = sum(source.groups_per_step for source in sources)
        return self.mode.groups(partial(super().make_stream, sources), per_step)

    def version_before(self, step: int) -> int:
        """Return the version of the weights that a step begins with."""
        return self.mode.version_before(step)

    async def before_rollout(self, step: int) -> bool:
        """Wait until a step may begin; return whether anything is sampled in it."""
        return await self.mode.before_rollout(step)

    def stored_file(self, step: int) -> Path | None:
        """Return the file that has exactly what a step was given, as that step's, where there is one already."""
        return self.mode.stored_file(step)

    def pass_on(self, groups: Sequence[TrajectoryGroup], step: int, file: Path | None) -> dict[str, float] | None:
        """Give the groups to who learns from them, if this run does not."""
        return self.mode.pass_on(groups, step, file)

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after a step: where checkpoints are evaluated, after each that there is."""
        return self.mode.evaluates(step, super().evaluates(step))

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after a step."""
        return self.mode.saves(step, super().saves(step))

    async def save(self, step: int) -> None:
        """Write a checkpoint."""
        await self.mode.save(partial(super().save, step))

    async def ready(self, first: int, resumed: bool) -> None:
        """Give the engines weights, and begin with the store."""
        if not resumed:
            self.mode.begin()
        await super().ready(first if self.mode.learns else 0, resumed)
        await self.mode.ready(first)

    async def updated(self, step: int) -> None:
        """Give others the new weights, where there are others."""
        await super().updated(step)
        await self.mode.updated(step)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Say in the end that nothing more will come, where others learn from it."""
        try:
            async with super().working():
                yield
                await self.mode.ended()  # before the store is closed, and its cluster left
        finally:
            self.mode.close()

    async def save_state(self, folder: Path) -> None:
        """Write what was learned, if anything was."""
        if self.mode.learns:
            await super().save_state(folder)
            self.mode.saved()

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load a checkpoint."""
        if self.mode.learns:
            await super().restore(folder, state)
        else:
            self.resume(state)

    def remarks(self) -> Iterator[str]:
        """Say what was read."""
        yield from super().remarks()
        yield from self.mode.remarks()
        yield from (f"  {line}" for line in self._written)

    def headline(self) -> str:
        """Return policy, algorithm and batch in a few words."""
        policy, step = Path(self.config.model_path("actor_train")).name, self.config.plan().train.short()
        return self.mode.headline(policy, step)
