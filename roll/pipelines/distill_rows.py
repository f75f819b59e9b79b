"""Distillation on files: a teacher says of every token of their answers what it would have said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from tensordict import TensorDict

from roll.algorithms.distillation import Divergence
from roll.config import RowDistillConfig
from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationTable
from roll.distributed import Cluster, WorkerSpec
from roll.pipelines.roles.models import ScoreRole
from roll.pipelines.rows import RowsRun, sum_totals
from roll.pipelines.sampling.demonstrations import in_batches, read_demonstrations, rows_batch
from roll.strategies.training.comparing import BUCKETS, IDS, STATES
from roll.strategies.training.distilled import IMITATED, TaughtImitationLoss
from roll.workers.classes import worker_class
from roll.workers.loading import require_same_tokens
from roll.workers.setup import Registered

TEACHER = "teacher"


class RowDistillPipeline(RowsRun[RowDistillConfig, DemonstrationTable]):
    """Brings the distributions of a student to those of its teacher on the answers of files."""

    done: ClassVar[str] = "taught"

    teacher: ScoreRole

    def read(self, data: DataArgs) -> DemonstrationTable:
        """Return the demonstrations."""
        return read_demonstrations(self.config, self.text, data)

    def loss(self) -> TaughtImitationLoss:
        """Return what is minimised."""
        return TaughtImitationLoss(self.config.distill_loss_weight)

    async def assemble(self, cluster: Cluster) -> None:
        """Load the teacher too."""
        await super().assemble(cluster)
        config = self.config
        require_same_tokens(config, self.text, [TEACHER])
        spec = WorkerSpec(cls=worker_class(config, TEACHER), args=(config, Registered.here(), TEACHER))
        self.teacher = await ScoreRole.over(await cluster.start(TEACHER, spec))
        heads = () if config.teacher_top_k is not None else (self.teacher,)
        await self.trainer.measure_from(*heads, divergence=Divergence(*config.measured_by))

    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return all sequences of the rows, with what the teacher says of them."""
        with self.progress.stage("teacher"):
            return await self._taught(self.rows.table, rows)

    async def measure_held_out(self, table: DemonstrationTable) -> dict[str, float]:
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

    async def _taught(self, table: DemonstrationTable, rows: Sequence[int]) -> TensorDict:
        batch = rows_batch(table, rows, self.padding)
        batch[IMITATED] = batch["response_mask"].clone()
        if self.config.distill_on_prompt:
            places = torch.arange(batch["input_ids"].shape[1])
            batch["response_mask"] = (places > 0) & (places < batch["lengths"].unsqueeze(1))
        if self.config.teacher_top_k is None:
            batch[STATES] = await self.teacher.compute_states(batch)
        else:
            batch[IDS], batch[BUCKETS] = await self.teacher.compute_top(batch, self.config.teacher_top_k)
        return batch

    def learns_by(self) -> str:
        """Return the divergence and the teacher."""
        return f"{self.config.divergence} from {Path(self.config.model_path(TEACHER)).name}"
