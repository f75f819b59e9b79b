"""The sections of a run that name files: read, with every fault a problem of the key that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from roll.config import ConfigError, Problem
from roll.config.row_steps import RowSteps
from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.supervised import DemonstrationSet, Table


def training_rows(config: RowSteps, read: Callable[[DataArgs], Table]) -> DemonstrationSet[Table]:
    """Return the rows to train on, which ``read`` makes of their section.

    Raises:
        ConfigError: If they cannot be used.
    """
    data = config.actor_train.data_args
    with data_faults_at("actor_train.data_args"):
        return DemonstrationSet(read(data), seed=config.seed, shuffle=data.shuffle)


def held_out_rows(config: RowSteps, read: Callable[[DataArgs], Table]) -> Table | None:
    """Return the rows that are held out, likewise, if the run is evaluated on any.

    Raises:
        ConfigError: If they cannot be used.
    """
    if config.validation is None or not config.eval_steps:
        return None
    with data_faults_at("validation.data_args"):
        return read(config.validation.data_args)


@contextmanager
def data_faults_at(path: str) -> Iterator[None]:
    """Make a fault of the data a problem of the section at ``path``, which names them.

    Raises:
        ConfigError: A ``DataError`` was raised inside.
    """
    try:
        yield
    except DataError as error:
        place_and_fault = str(error).partition("\n    Fix: ")[0]
        raise ConfigError([Problem(f"{path}.file_name", place_and_fault, error.fix)]) from error
