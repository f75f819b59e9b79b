"""A run whose steps are the next rows of files. Nothing is sampled to learn from, so there are no engines."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tensordict import TensorDict

from roll.config.row_steps import RowSteps
from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationSet, Table
from roll.distributed import Cluster, WorkerSpec
from roll.pipelines.checks.rows import check_rows
from roll.pipelines.policy_evaluation import PolicyEvaluation
from roll.pipelines.reporting.metrics import prefixed
from roll.pipelines.roles.models import TrainRole
from roll.pipelines.run.checkpoint import write_tokenizer
from roll.pipelines.run.command import review_command
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.run.life_cycle import Run
from roll.pipelines.run.slow_arithmetic import slow_format_warnings
from roll.pipelines.sampling.data_sections import data_faults_at, held_out_rows, training_rows
from roll.pipelines.sampling.demonstrations import describe
from roll.runs.layout import TRAJECTORIES
from roll.strategies.base import BatchTotals, Loss
from roll.tracking import RunSummary
from roll.workers.classes import worker_class
from roll.workers.loading import Text, load_text
from roll.workers.setup import Registered

Config = TypeVar("Config", bound=RowSteps)


class RowsRun(Run[Config], Generic[Config, Table]):
    """A run over rows; a pipeline says how they are read, what of them is a batch, and what is minimised."""

    done: ClassVar[str] = "imitated"
    """What happens to tokens, in a word."""

    text: Text
    rows: DemonstrationSet[Table]
    held_out: Table | None
    trainer: TrainRole
    measured: PolicyEvaluation | None

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """Check what loading cannot; return what has no effect."""
        notes = check_rows(config)
        PolicyEvaluation.of(config)
        return notes

    @abstractmethod
    def read(self, data: DataArgs) -> Table:
        """Return the rows of a section's files.

        Raises:
            DataError: If they cannot be used.
        """

    @abstractmethod
    def loss(self) -> Loss:
        """Return what is minimised."""

    @abstractmethod
    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return rows of the training table, by their numbers, as a batch."""

    @abstractmethod
    async def measure_held_out(self, table: Table) -> dict[str, float]:
        """Return loss and kin of the held-out rows."""

    @abstractmethod
    def learns_by(self) -> str:
        """Return how it learns, in a word."""

    async def assemble(self, cluster: Cluster) -> None:
        """Read the rows, which say how long an epoch is; load the policy."""
        self.text = load_text(self.config)
        self.rows, self.held_out = training_rows(self.config, self.read), held_out_rows(self.config, self.read)
        self._rows_to_train = self.config.rows_to_train(len(self.rows.table))
        self.config = self.config.for_rows(len(self.rows.table))
        self.measured = PolicyEvaluation.of(self.config)
        if self.measured is not None:
            self.measured.require(self.text)
        self._position = 0
        arguments = (self.config, "actor_train", Registered.here())
        spec = WorkerSpec(cls=worker_class(self.config, "actor_train"), args=arguments)
        self.trainer = await TrainRole.over(await cluster.start("actor_train", spec))

    @property
    def padding(self) -> int:
        """The token that fills up sequences."""
        return int(self.text.tokenizer.pad_token_id or 0)

    async def step(self, step: int) -> None:
        """One optimiser step on the next rows."""
        first = self._position
        last = first + self.config.rows_per_step
        if self._rows_to_train is not None:
            last = min(last, max(self._rows_to_train, first + 1))
        batch = await self.batch([self.rows.row_at(position) for position in range(first, last)])
        with self.progress.stage("update"):
            learned = await to_its_end(asyncio.create_task(self._update(batch, last, step)))
        counts = {
            "rows": float(last - first),
            "tokens": float(batch["lengths"].sum()),
            "trained_tokens": float(batch["response_mask"].sum()),
            "epoch": last / len(self.rows.table),
        }
        self.log.step(step, prefixed({**learned, **counts}, "train"))

    async def _update(self, batch: TensorDict, position: int, step: int) -> dict[str, float]:
        """Take an optimiser step; afterwards ``step`` is complete, and the rows before ``position`` are behind it."""
        with self.changing(step):
            learned = await self.trainer.train_step(batch, self.loss())
            self._position = position
        return learned

    async def evaluate(self, step: int) -> None:
        """Measure the held-out rows, and what the policy plays and answers."""
        metrics: dict[str, float] = {}
        if self.held_out is not None:
            with self.progress.stage("eval"):
                metrics |= await self.measure_held_out(self.held_out)
        if self.measured is not None:
            metrics |= await self.measured.measure(self.trainer, self.text, step, self.progress)
        if metrics:
            self.log.evaluation(step, prefixed(metrics, "val"))

    def state(self) -> dict[str, Any]:
        """Return which rows were trained on, as JSON."""
        return {"data": self.rows.state_dict(self._position)}

    async def save_state(self, folder: Path) -> None:
        """Write the trainer, with the policy in Hugging Face format beside it."""
        await self.trainer.save(folder)
        write_tokenizer(self.text.tokenizer, folder)

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load a checkpoint.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        with data_faults_at("actor_train.data_args"):
            self._position = self.rows.check_state(state["data"])
        await self.load(folder)

    async def load(self, folder: Path) -> None:
        """Load what was trained, when the data are known to be those of the checkpoint."""
        await self.trainer.load(folder)

    def headline(self) -> str:
        """Return policy, how it learns, and batch in a few words."""
        policy = Path(self.config.model_path("actor_train")).name
        return f"{policy}, {self.learns_by()}, {self.config.rows_per_step} rows per step"

    def how_to_review(self) -> str:
        """Return the command that opens the review, where the policy plays or answers."""
        return review_command(self.config) if self.measured is not None else ""

    def summary(self, steps: int) -> RunSummary:
        """Return what is shown at the end, with the places of what was played and answered."""
        summary = super().summary(steps)
        if self.measured is None or self.log.evaluated < 0:
            return summary
        return replace(summary, trajectories=self.config.output_dir / TRAJECTORIES, pages=self.config.render_path)

    def remarks(self) -> Iterator[str]:
        """Say what was read, and what will be slow."""
        yield from slow_format_warnings(self.config)
        yield from (f"  {line}" for line in describe("data", self.rows.table, self.done))
        if self.held_out is not None:
            yield from (f"  {line}" for line in describe("held out", self.held_out, self.done))


def sum_totals(parts: Iterable[BatchTotals]) -> BatchTotals:
    """Return the counts of batches together."""
    counts = list(parts)
    return BatchTotals(
        sum(one.tokens for one in counts),
        sum(one.sequences for one in counts),
        sum(one.measured_tokens for one in counts),
    )
