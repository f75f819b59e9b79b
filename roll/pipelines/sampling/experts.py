"""What the experts of a run wrote: read from its files, and taken in an order that only the seed decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict

from roll.config import RLConfig
from roll.data.supervised import DemonstrationSet, DemonstrationTable
from roll.pipelines.sampling.data_sections import data_faults_at
from roll.pipelines.sampling.demonstrations import rows_batch


class ExpertRows:
    """The rows of experts (:class:`roll.pipelines.learning.expert_rows.Experts`).

    Make it with :meth:`of`.

    Args:
        rows: What was read.
        per_step: How many rows a training step takes.
        padding: The token that fills up sequences.
    """

    def __init__(self, rows: DemonstrationSet[DemonstrationTable], per_step: int, padding: int) -> None:
        self._rows = rows
        self._per_step = per_step
        self._padding = padding
        self._position = 0

    @classmethod
    def of(cls, config: RLConfig, table: DemonstrationTable, padding: int) -> ExpertRows:
        """Return the rows of a run that has an expert, which were read, in their order."""
        assert config.expert is not None
        rows = DemonstrationSet(table, seed=config.seed, shuffle=config.expert.data_args.shuffle)
        plan = config.update_plan()
        return cls(rows, plan.mini_batches * plan.expert_rows, padding)

    def take(self) -> tuple[TensorDict, dict[str, float]]:
        """Return all sequences of the next training step's rows, and metrics."""
        first, self._position = self._position, self._position + self._per_step
        table = self._rows.table
        taken = [self._rows.row_at(position) for position in range(first, self._position)]
        written = rows_batch(table, taken, self._padding)
        return written, {
            "expert/rows": float(len(taken)),
            "expert/tokens": float(written["response_mask"].sum()),
            "expert/epoch": self._position / len(table),
        }

    def state(self) -> dict[str, Any]:
        """Return which rows were taken, as JSON."""
        return self._rows.state_dict(self._position)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on behind the rows of :meth:`state`.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        with data_faults_at("expert.data_args"):
            self._position = self._rows.check_state(state)
