"""Distillation: the student plays and answers, teachers say at every token what they would have said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from roll.config import DistillConfig, PromptDistillConfig
from roll.config.taught import TaughtConfig
from roll.pipelines.answering import AnsweringRun
from roll.pipelines.checks.distill import check_distill, check_distill_prompts
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.distiller import Distiller
from roll.pipelines.learning.taught_rows import KEY, TaughtRows
from roll.pipelines.playing import PlayingRun
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampled import SampledRun
from roll.workers.loading import Text

Config = TypeVar("Config", bound=TaughtConfig)


class TaughtRun(SampledRun[Config]):
    """Brings the distributions of a student to those of its teachers, on what the student samples or a file has."""

    stored: TaughtRows | None = None

    def read_data(self, text: Text) -> None:
        """Read what teachers said, if files have that, before a model loads."""
        if self.config.teacher_data:
            self.stored = TaughtRows(self.config, text)

    def make_learner(self) -> Distiller:
        """Return what asks the teachers."""
        return Distiller(self.config, self.core, self.progress)

    async def step(self, step: int) -> None:
        """One step: sample, or take the next rows of the files; learn from what teachers say of that; report."""
        if self.stored is None:
            await super().step(step)
            return
        batch = TrainingBatch(self.stored.batch(step), [], [], [], None)
        learned = await to_its_end(asyncio.create_task(self.update(batch, step)))
        self.log.step(step, {**learned, "train/epoch": self.stored.epoch(step)})
        self.core.weight_check.require()

    def state(self) -> dict[str, Any]:
        """Return what was sampled, and which rows of files there are, as JSON."""
        stored = {} if self.stored is None else {KEY: self.stored.state()}
        return {**super().state(), **stored}

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Go on where a checkpoint ended.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        if self.stored is not None and KEY in state:
            self.stored.check_state(state[KEY])
        await super().restore(folder, state)

    def headline(self) -> str:
        """Return student, divergence, teachers and batch in a few words."""
        config = self.config
        student = Path(config.model_path("actor_train")).name
        if config.teacher_data:
            return f"{student} from files, {config.divergence}, {config.samples_per_step} rows per step"
        teachers = ", ".join(dict.fromkeys(Path(config.model_path(role)).name for role, _ in config.teacher_roles()))
        return f"{student} from {teachers}, {config.divergence}, {config.plan().train.short()}"

    def remarks(self) -> Iterator[str]:
        """Say what was read."""
        yield from super().remarks()
        if self.stored is not None:
            yield f"  teacher   {len(self.stored.rows):,} rows, {self.stored.rows[0].teacher_ids.shape[1]} tokens named"


class DistillPipeline(TaughtRun[DistillConfig], PlayingRun[DistillConfig]):
    """The student plays, and may answer prompts beside that."""

    @classmethod
    def check(cls, config: DistillConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_distill(config)


class PromptDistillPipeline(TaughtRun[PromptDistillConfig], AnsweringRun[PromptDistillConfig]):
    """The student answers prompts."""

    @classmethod
    def check(cls, config: PromptDistillConfig) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        return check_distill_prompts(config)
