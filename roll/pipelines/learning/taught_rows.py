"""What teachers said and a file kept: batches in an order that only the seed decides, and how far a run has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from roll.config import ConfigError, Problem
from roll.config.taught import TaughtConfig
from roll.data.errors import DataError
from roll.data.order import RowOrder
from roll.strategies.training.comparing import BUCKETS, IDS
from roll.trajectories.errors import TaughtRowError
from roll.trajectories.taught import TaughtRow, read_taught
from roll.workers.loading import Text

KEY = "teacher_data"


class TaughtRows:
    """The rows that a run learns from in place of episodes.

    Args:
        config: The run.
        text: Tokenizer of the student.

    Raises:
        ConfigError: A file is not there, or a row cannot be used.
    """

    def __init__(self, config: TaughtConfig, text: Text) -> None:
        try:
            rows, digest = read_taught(
                [Path(name) for name in config.teacher_data],
                vocabulary=len(text.tokenizer),
                max_length=config.sequence_length,
            )
        except TaughtRowError as error:
            fix = "name files that a run with store_teacher: true has written (output_dir/teacher), or correct the row."
            raise ConfigError([Problem(KEY, str(error), fix)]) from error
        self.rows: Sequence[TaughtRow] = rows
        self._per_step = config.samples_per_step
        self._padding = int(text.tokenizer.pad_token_id or 0)
        everything = {"": np.arange(len(rows))}
        self._order = RowOrder(everything, {"": digest}, seed=config.seed)

    def batch(self, step: int) -> TensorDict:
        """Return the rows of step ``step``, from 1, as a padded batch with what the teacher said."""
        first = (step - 1) * self._per_step
        return taught_batch([self.rows[self._order.at(first + n)] for n in range(self._per_step)], self._padding)

    def epoch(self, step: int) -> float:
        """Return how often the rows have been gone through after step ``step``."""
        return step * self._per_step / len(self.rows)

    def state(self) -> dict[str, Any]:
        """Return which rows they are, as JSON; how far a run has come in them, its steps say."""
        return self._order.state_dict(0)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Compare them with those of a checkpoint.

        Raises:
            ConfigError: They are others.
        """
        try:
            self._order.check_state(state)
        except DataError as error:
            raise ConfigError([Problem(KEY, error.what, error.fix)]) from error


def taught_batch(rows: Sequence[TaughtRow], padding: int) -> TensorDict:
    """Pad rows on the right into a batch (:mod:`roll.strategies.training.comparing` says what its columns are)."""
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    k = rows[0].teacher_ids.shape[1]

    def placed(row: TaughtRow, values: np.ndarray, width: int) -> Tensor:
        spread = torch.zeros(len(row.input_ids), width, dtype=torch.from_numpy(values[:0]).dtype)
        spread[torch.from_numpy(row.places)] = torch.from_numpy(values)
        return spread

    ids = [torch.from_numpy(row.input_ids) for row in rows]
    trained = [placed(row, np.ones((len(row.places), 1), dtype=np.bool_), 1).squeeze(1) for row in rows]
    columns = {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding),
        "response_mask": pad_sequence(trained, batch_first=True),
        "lengths": lengths,
        IDS: pad_sequence([placed(row, row.teacher_ids, k) for row in rows], batch_first=True),
        BUCKETS: pad_sequence([placed(row, row.teacher_log_probs, k + 1) for row in rows], batch_first=True),
    }
    return TensorDict(columns, batch_size=[len(rows)])


def taught_rows(batches: Iterable[TensorDict]) -> Iterator[TaughtRow]:
    """Yield the rows of batches with what the teachers said; the other way round than :func:`taught_batch`."""
    for batch in batches:
        for row in range(len(batch)):
            length = int(batch["lengths"][row])
            places = batch["response_mask"][row, :length].nonzero().squeeze(-1)
            if len(places):
                columns = (
                    batch["input_ids"][row, :length],
                    places,
                    batch[IDS][row, places],
                    batch[BUCKETS][row, places],
                )
                yield TaughtRow(*(column.numpy() for column in columns))
