"""Distillation on files: teachers say of every token of their answers what they would have said."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from tensordict import TensorDict

from roll.algorithms.distillation import Divergence
from roll.config import RowDistillConfig
from roll.config.worker import DataArgs
from roll.data.taught_demonstrations import TaughtTable, load_taught
from roll.distributed import Cluster, WorkerSpec
from roll.pipelines.learning.teachers import ask
from roll.pipelines.roles.models import ScoreRole
from roll.pipelines.rows import RowsRun, sum_totals
from roll.pipelines.sampling.demonstrations import encode, in_batches, rows_batch
from roll.strategies.training.comparing import HEAD
from roll.strategies.training.distilled import IMITATED, TaughtImitationLoss
from roll.workers.classes import worker_class
from roll.workers.loading import require_same_tokens
from roll.workers.setup import Registered


class RowDistillPipeline(RowsRun[RowDistillConfig, TaughtTable]):
    """Brings the distributions of a student to those of its teachers on the answers of files."""

    done: ClassVar[str] = "taught"

    teachers: Sequence[ScoreRole]

    def read(self, data: DataArgs) -> TaughtTable:
        """Return the demonstrations, each with the number of its teacher."""
        config = self.config
        roles = [role for role, _ in config.teacher_roles()]
        numbers = {tag: roles.index(role) for tag, role in config.teachers_by_tag().items()}
        others = 0 if config.teacher is not None else None
        return load_taught(data, config, config.sequence_length, partial(encode, self.text), numbers, others)

    def loss(self) -> TaughtImitationLoss:
        """Return what is minimised."""
        return TaughtImitationLoss(self.config.distill_loss_weight)

    async def assemble(self, cluster: Cluster) -> None:
        """Load the teachers too."""
        await super().assemble(cluster)
        config = self.config
        roles = [role for role, _ in config.teacher_roles()]
        require_same_tokens(config, self.text, roles)
        self.teachers = [await self._teacher(cluster, role) for role in roles]
        heads = () if config.teacher_top_k is not None else self.teachers
        await self.trainer.measure_from(*heads, divergence=Divergence(*config.measured_by))

    async def _teacher(self, cluster: Cluster, role: str) -> ScoreRole:
        arguments = (self.config, Registered.here(), role)
        spec = WorkerSpec(cls=worker_class(self.config, role), args=arguments)
        return await ScoreRole.over(await cluster.start(role, spec))

    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return all sequences of the rows, with what their teachers say of them."""
        with self.progress.stage("teacher"):
            return await self._taught(self.rows.table, rows)

    async def measure_held_out(self, table: TaughtTable) -> dict[str, float]:
        """Return loss, divergence and nll (nats per token) of the held-out rows."""
        loss, sums = self.loss(), dict[str, float]()
        batches = [await self._taught(table, rows) for rows in in_batches(len(table), self.config.rows_per_step)]
        totals = sum_totals(loss.totals(batch) for batch in batches)
        for batch in batches:
            log_probs = await self.trainer.compute_log_probs(batch)
            batch["divergence"] = await self.trainer.compute_divergence(batch)
            value, metrics = loss(log_probs, None, batch, totals)
            for name, share in {"loss": value, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(share)
        return sums

    async def _taught(self, table: TaughtTable, rows: Sequence[int]) -> TensorDict:
        batch = rows_batch(table, rows, self.padding)
        batch[HEAD] = torch.tensor([table.teacher(row) for row in rows for _ in table.sequences(row)])
        batch[IMITATED] = batch["response_mask"].clone()
        if self.config.distill_on_prompt:
            places = torch.arange(batch["input_ids"].shape[1])
            batch["response_mask"] = (places > 0) & (places < batch["lengths"].unsqueeze(1))
        await ask(self.teachers, batch, self.config.teacher_top_k)
        return batch

    def learns_by(self) -> str:
        """Return the divergence and the teachers."""
        models = (Path(self.config.model_path(role)).name for role, _ in self.config.teacher_roles())
        return f"{self.config.divergence} from {', '.join(dict.fromkeys(models))}"
