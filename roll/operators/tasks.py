"""Operators on rows of tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from roll.operators.registry import Registered, TaskRow


def keep_where(
    rows: Sequence[TaskRow],
    *,
    column: str,
    least: float | None = None,
    most: float | None = None,
    equals: Any = None,
    matches: str | None = None,
    matches_not: str | None = None,
) -> list[TaskRow]:
    """Keep rows of which a column is within numbers, equal, or (not) matched by a pattern somewhere."""

    def fits(row: TaskRow) -> bool:
        value = _cell(row, column)
        return (
            (least is None or float(value) >= least)
            and (most is None or float(value) <= most)
            and (equals is None or value == equals)
            and (matches is None or re.search(matches, str(value)) is not None)
            and (matches_not is None or re.search(matches_not, str(value)) is None)
        )

    return [row for row in rows if fits(row)]


def keep_lengths(rows: Sequence[TaskRow], *, column: str, least: int = 0, most: int | None = None) -> list[TaskRow]:
    """Keep rows whose text in a column has so many characters."""
    lengths = ((row, len(str(_cell(row, column)))) for row in rows)
    return [row for row, length in lengths if length >= least and (most is None or length <= most)]


def deduplicate(rows: Sequence[TaskRow], *, columns: Sequence[str]) -> list[TaskRow]:
    """Keep the first of rows that say the same in some columns, whatever their case, spaces and punctuation."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for row in rows:
        said = tuple(" ".join(re.findall(r"\w+", str(_cell(row, column)).casefold())) for column in columns)
        if said not in seen:
            seen.add(said)
            kept.append(row)
    return kept


def rewrite(rows: Sequence[TaskRow], *, column: str, template: str) -> list[TaskRow]:
    """Write a column anew; ``{name}`` in the template stands for the text of a column, ``{{`` for a brace."""
    return [replace(row, columns={**row.columns, column: template.format_map(_Cells(row))}) for row in rows]


def curriculum(rows: Sequence[TaskRow], *, column: str, hardest_first: bool = False) -> list[TaskRow]:
    """Order rows by a number, the smallest first; with ``shuffle: false`` they are played in this order."""
    return sorted(rows, key=lambda row: float(_cell(row, column)), reverse=hardest_first)


class _Cells(dict[str, Any]):
    """The columns of a row, for a template."""

    def __init__(self, row: TaskRow) -> None:
        super().__init__(row.columns)
        self._row = row

    def __missing__(self, column: str) -> Any:
        return _cell(self._row, column)


def _cell(row: TaskRow, column: str) -> Any:
    """Return a cell; dots go into mappings.

    Raises:
        ValueError: The row has no such column.
    """
    value: Any = row.columns
    for part in [column] if column in row.columns else column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"{row.key} has no column {column!r}; it has {', '.join(map(str, row.columns))}")
        value = value[part]
    return value


FILTER: Final = Registered(keep_where, "tasks")
LENGTH: Final = Registered(keep_lengths, "tasks")
DEDUPLICATE: Final = Registered(deduplicate, "tasks")
REWRITE: Final = Registered(rewrite, "tasks")
CURRICULUM: Final = Registered(curriculum, "tasks")
