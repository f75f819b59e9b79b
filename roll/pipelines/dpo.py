"""Learning from preferences: pairs of answers -> a policy that prefers the better ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tensordict import TensorDict

from roll.config.dpo import DPOConfig
from roll.config.worker import DataArgs
from roll.data.preferences import PreferenceTable
from roll.distributed import Cluster, WorkerSpec
from roll.pipelines.preference_reference import PreferenceReference
from roll.pipelines.roles.models import ScoreRole
from roll.pipelines.rows import RowsRun, sum_totals
from roll.pipelines.sampling.demonstrations import in_batches
from roll.pipelines.sampling.preferences import preference_batch, read_preferences
from roll.strategies.base import BatchTotals
from roll.strategies.training.preference import PreferenceLoss, answer_sums
from roll.workers.classes import worker_class
from roll.workers.setup import Registered


class DPOPipeline(RowsRun[DPOConfig, PreferenceTable]):
    """Learns which of two answers is better; a step is one optimiser step over the next pairs of the data."""

    done: ClassVar[str] = "compared"

    reference: PreferenceReference

    def read(self, data: DataArgs) -> PreferenceTable:
        """Return the pairs, or judged answers."""
        return read_preferences(self.config, self.text, data)

    def loss(self) -> PreferenceLoss:
        """Return what is minimised."""
        return self._loss

    async def assemble(self, cluster: Cluster) -> None:
        """Load the reference too."""
        await super().assemble(cluster)
        self._loss = loss_of(self.config)
        model = None
        if self.config.reference_kind == "model":
            spec = WorkerSpec(cls=worker_class(self.config, "reference"), args=(self.config, Registered.here()))
            model = await ScoreRole.over(await cluster.start("reference", spec))
        tables = {"train": self.rows.table} | ({} if self.held_out is None else {"val": self.held_out})
        self.reference = PreferenceReference(self.config, self.trainer, model, tables, self.padding)

    async def ready(self, first: int, resumed: bool) -> None:
        """Compute what is stored of the reference, unless the checkpoint had it."""
        if self.reference.missing:
            with self.progress.stage("reference"):
                await self.reference.store()

    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return both answers of each pair, with what the reference says of them."""
        with self.progress.stage("reference"):
            return await self.reference.batch("train", rows)

    async def measure_held_out(self, table: PreferenceTable) -> dict[str, float]:
        """Return loss and rewards."""
        parts = list(in_batches(len(table), self.config.rows_per_step))
        totals = self._counted(table, parts)
        sums: dict[str, float] = {}
        for rows in parts:
            batch = await self.reference.batch("val", rows)
            log_probs = await self.trainer.compute_log_probs(batch)
            loss, metrics = self._loss.of_answers(answer_sums(log_probs, batch), batch, totals)
            for name, share in {"loss": loss, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(share)
        return sums

    def _counted(self, table: PreferenceTable, parts: Sequence[Sequence[int]]) -> BatchTotals:
        """Return the counts of a whole table."""
        return sum_totals(self._loss.totals(preference_batch(table, rows, 0)) for rows in parts)

    async def save_state(self, folder: Path) -> None:
        """Write what is stored of the reference too."""
        await super().save_state(folder)
        self.reference.save(folder)

    async def load(self, folder: Path) -> None:
        """Load what is stored of the reference first: before the policy is another one, held-out rows may be new."""
        await self.reference.load(folder)
        await super().load(folder)

    def learns_by(self) -> str:
        """Return the loss."""
        return self.config.loss_type


def loss_of(config: DPOConfig) -> PreferenceLoss:
    """Return what a run minimises."""
    return PreferenceLoss(
        kind=config.loss_type,
        beta=config.strength,
        label_smoothing=config.label_smoothing,
        gamma=config.simpo_gamma,
        desirable_weight=config.desirable_weight,
        undesirable_weight=config.undesirable_weight,
        supervised_weight=config.supervised_weight,
    )
