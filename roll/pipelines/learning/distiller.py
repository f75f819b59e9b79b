"""Learning from teachers: trajectories -> samples -> batch -> what teachers say of every token -> optimiser steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from roll.config.taught import TaughtConfig
from roll.pipelines.learning.batches import TrainingBatch, mini_batches, training_batch
from roll.pipelines.learning.objective import merge_metrics
from roll.pipelines.learning.taught_rows import taught_rows
from roll.pipelines.learning.teachers import ask
from roll.pipelines.reporting.metrics import batch_metrics, prefixed
from roll.pipelines.roles.core import Core
from roll.pipelines.run.checkpoint import write_tokenizer
from roll.strategies.training.comparing import HEAD, IDS
from roll.strategies.training.distilled import DistillationLoss, SampledDistillationLoss
from roll.tracking import Progress
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.taught import taught_path, write_taught


class Distiller:
    """Turns trajectories into new weights of a student.

    Args:
        config: A checked configuration.
        core: The student, and its teachers among the frozen models.
        progress: Told which stage runs.
    """

    def __init__(self, config: TaughtConfig, core: Core, progress: Progress) -> None:
        self.config = config
        self.core = core
        self.progress = progress
        self._roles = [role for role, _ in config.teacher_roles()]
        by_tag = config.teachers_by_tag()
        self._number_of = {tag: self._roles.index(role) for tag, role in by_tag.items()}
        self._loss = (SampledDistillationLoss if config.compares_sampled else DistillationLoss)(
            config.loss_agg_mode, config.sequence_length
        )

    def make_batch(self, groups: Sequence[TrajectoryGroup]) -> TrainingBatch:
        """Turn trajectories into a padded batch; those that broke are left out.

        Raises:
            RolloutError: If nothing is left to train on.
        """
        batch = training_batch(
            groups,
            self.config.sample_mode,
            max_length=self.config.sequence_length,
            pad_token_id=int(self.core.tokenizer.pad_token_id or 0),
        )
        # What no other teacher teaches is the first one's: `teacher`, which is there if anything is left.
        numbers = [self._number_of.get(sample.tag, 0) for sample in batch.samples]
        batch.tensors[HEAD] = torch.tensor(numbers)
        return batch

    async def learn(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        """Take the optimiser steps of training step ``step``; teachers are asked for one of them at a time."""
        metrics = batch_metrics(batch.tensors)
        reports, said, key = [], list[TensorDict](), (self.config.seed, step, 0)
        for part in mini_batches(batch.tensors, self.config.update_plan().mini_batches, key):
            if IDS not in part.keys():
                with self.progress.stage("log_probs"):
                    await self._ask(part)
                if self.config.store_teacher:
                    said.append(part)
            with self.progress.stage("update"):
                reports.append(await self.core.trainer.train_step(part, self._loss))
        if said:
            write_taught(taught_path(self.config.output_dir, step), taught_rows(said))
        return {**metrics, **prefixed(merge_metrics(reports), "train")}

    async def _ask(self, part: TensorDict) -> None:
        config, teachers = self.config, [self.core.frozen[role] for role in self._roles]
        await ask(teachers, part, config.teacher_top_k, sampled_only=config.compares_sampled)

    def keep(self, batch: TrainingBatch, step: int) -> None:
        """Nothing: the review shows no divergence from teachers."""

    def state(self) -> dict[str, Any]:
        """Nothing: teachers do not change."""
        return {}

    async def save(self, directory: Path) -> None:
        """Write the trainer, with the student in Hugging Face format and its tokenizer beside it."""
        await self.core.trainer.save(directory)
        write_tokenizer(self.core.tokenizer, directory)

    async def restore(self, directory: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save` wrote."""
        await self.core.trainer.load(directory)
