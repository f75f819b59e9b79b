"""Rows of tasks as a dataset of Hugging Face, and what is left of them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import datasets
import pyarrow

from roll.operators.registry import TaskRow

_PLACE: Final = "__roll_place__"


def through_dataset(rows: Sequence[TaskRow], change: Callable[[datasets.Dataset], datasets.Dataset]) -> list[TaskRow]:
    """Return rows as a change of the dataset of their columns leaves them.

    A cell that the change left alone stays the object that it was, whatever Arrow made of it meanwhile.

    Args:
        rows: The rows.
        change: Drops rows, changes or adds columns, or gives another order.

    Raises:
        ValueError: The columns of the rows do not fit into one dataset, or what comes back are other rows.
    """
    if not rows:
        return []
    names = dict.fromkeys(name for row in rows for name in row.columns)
    cells = [{_PLACE: place, **{name: row.columns.get(name) for name in names}} for place, row in enumerate(rows)]
    try:
        before = datasets.Dataset.from_list(cells)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ValueError(
            f"the rows do not fit into one dataset, a column has cells of several types: {error}"
        ) from error
    with _without_bars():
        after = change(before)
    if not isinstance(after, datasets.Dataset) or after.features.get(_PLACE) != before.features[_PLACE]:
        raise ValueError("it makes other rows of these; only what drops, changes or orders rows can be an operator")
    seen = before.to_list()
    return [_merged(rows[each[_PLACE]], seen[each[_PLACE]], each) for each in after.to_list()]


def _merged(row: TaskRow, seen: dict[str, Any], now: dict[str, Any]) -> TaskRow:
    columns = {}
    for name, value in now.items():
        if name in seen and value == seen[name]:
            if name in row.columns:
                columns[name] = row.columns[name]
        else:
            columns[name] = value
    return replace(row, columns=columns)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the bars of progress from the terminal, which shows that of the run."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
