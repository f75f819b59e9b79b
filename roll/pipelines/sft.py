"""Supervised fine-tuning: demonstrations -> imitation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tensordict import TensorDict

from roll.config import SFTConfig
from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationTable
from roll.pipelines.rows import RowsRun
from roll.pipelines.sampling.demonstrations import in_batches, read_demonstrations, rows_batch
from roll.strategies.training.supervised import SupervisedLoss


class SFTPipeline(RowsRun[SFTConfig, DemonstrationTable]):
    """Imitates the answers of conversations; a step is one optimiser step over the next rows of the data."""

    def read(self, data: DataArgs) -> DemonstrationTable:
        """Return the demonstrations."""
        return read_demonstrations(self.config, self.text, data)

    def loss(self) -> SupervisedLoss:
        """Return what is minimised."""
        return SupervisedLoss()

    async def batch(self, rows: Sequence[int]) -> TensorDict:
        """Return all sequences of the rows."""
        return rows_batch(self.rows.table, rows, self.padding)

    async def measure_held_out(self, table: DemonstrationTable) -> dict[str, float]:
        """Return loss (nats per imitated token) and perplexity."""
        total, tokens = 0.0, 0
        for rows in in_batches(len(table), self.config.rows_per_step):
            batch = rows_batch(table, rows, self.padding)
            log_probs = await self.trainer.compute_log_probs(batch)
            mask = batch["response_mask"]
            total -= float(log_probs[mask].double().sum())
            tokens += int(mask.sum())
        loss = total / tokens
        return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}

    def learns_by(self) -> str:
        """Return how it learns, in a word."""
        return "sft"
