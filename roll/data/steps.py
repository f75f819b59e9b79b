"""From the ``data_args`` section to answers whose steps have labels, as tokens: every row read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from roll.config.reward_model_keys import RewardModelKeys
from roll.config.worker import DataArgs
from roll.data.loading import Source, open_sources
from roll.data.step_rows import LabelledSteps, StepColumns, StepReader
from roll.data.supervised import AddRow, DemonstrationTable, fill
from roll.rendering.supervised import TokenSequence

EncodeSteps = Callable[[LabelledSteps], TokenSequence]
"""The tokens of a row, those marked behind which a step ends."""


class StepTable(DemonstrationTable):
    """The tokens of all answers, in file order, with the labels of their steps."""

    def __init__(self, args: DataArgs, limit: int) -> None:
        super().__init__(args, limit)
        self._labels: list[np.ndarray] = []

    def add_steps(self, sequences: list[TokenSequence], labels: list[float]) -> None:
        """Append an answer, of whose beginning steps may have been cut off."""
        self.add(sequences)
        self._labels.append(np.array(labels[-sum(sequences[0].trained) :], np.float32))

    def labels(self, row: int) -> np.ndarray:
        """Return the labels of an answer's steps, ``[steps]`` float32 in [0, 1]."""
        return self._labels[row]


def load_steps(args: DataArgs, keys: RewardModelKeys, encode: EncodeSteps) -> StepTable:
    """Read all rows of a section.

    Args:
        args: The ``data_args`` section.
        keys: Which columns hold what, and how long a sequence may be.
        encode: Makes tokens of a row.

    Raises:
        DataError: If a file or a row cannot be used; the message names place and fix.
    """
    table = StepTable(args, keys.sequence_length)

    def of_file(rows: Source) -> AddRow:
        reader = StepReader(StepColumns.of(keys, rows.columns, rows.name), args.system_prompt)

        def add(row: Mapping[str, Any]) -> None:
            read = reader.read(row)
            if sequences := table.fitted([encode(read)]):
                table.add_steps(sequences, read.labels)

        return add

    fill(table, open_sources(args, table.report), of_file)
    return table
