"""Training of reward models: answers that were compared, or steps with labels -> a model that scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tensordict import TensorDict

from roll.config.reward_model import RewardModelConfig
from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationTable
from roll.pipelines.rows import RowsRun, sum_totals
from roll.pipelines.sampling.demonstrations import in_batches
from roll.pipelines.sampling.preferences import read_preferences
from roll.pipelines.sampling.scored import encode_pair, pair_batch, read_steps, step_batch
from roll.strategies.training.reward import OutcomeLoss, ProcessLoss
from roll.workers.loading import Text


@dataclass(frozen=True, slots=True)
class Supervision:
    """What a reward model learns from.

    Attributes:
        read: Reads the files of a section.
        batch: Returns rows of a table, by their numbers, as a batch; takes the token that fills up sequences.
    """

    read: Callable[[RewardModelConfig, Text, DataArgs], DemonstrationTable]
    batch: Callable[[Any, Sequence[int], int], TensorDict]


_OUTCOME = Supervision(partial(read_preferences, encoded=encode_pair), pair_batch)
_PROCESS = Supervision(read_steps, step_batch)


class RewardModelPipeline(RowsRun[RewardModelConfig, DemonstrationTable]):
    """Learns to score; a step is one optimiser step over the next pairs, or answers, of the data."""

    done: ClassVar[str] = "scored"

    def read(self, data: DataArgs) -> DemonstrationTable:
        """Return the pairs, or the answers in steps."""
        return self._supervision.read(self.config, self.text, data)

    def loss(self) -> OutcomeLoss | ProcessLoss:
        """Return what is minimised."""
        return loss_of(self.config)

    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return both answers of each pair, or each answer."""
        return self._supervision.batch(self.rows.table, rows, self.padding)

    async def measure_held_out(self, table: DemonstrationTable) -> dict[str, float]:
        """Return loss and accuracy."""
        loss, sums = self.loss(), dict[str, float]()
        batches = [
            self._supervision.batch(table, rows, self.padding)
            for rows in in_batches(len(table), self.config.rows_per_step)
        ]
        totals = sum_totals(loss.totals(batch) for batch in batches)
        for batch in batches:
            value, metrics = loss(await self.trainer.compute_values(batch), None, batch, totals)
            for name, share in {"loss": value, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(share)
        return sums

    def learns_by(self) -> str:
        """Return what is scored."""
        return f"reward model ({self.config.supervision})"

    @property
    def _supervision(self) -> Supervision:
        return _OUTCOME if self.config.supervision == "outcome" else _PROCESS


def loss_of(config: RewardModelConfig) -> OutcomeLoss | ProcessLoss:
    """Return what a run minimises."""
    return OutcomeLoss(config.center_rewards_coefficient) if config.supervision == "outcome" else ProcessLoss()
