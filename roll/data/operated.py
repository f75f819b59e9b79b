"""The rows of all sources behind a pipeline of operators, as one source more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from roll.data.errors import DataError
from roll.data.report import LoadReport
from roll.data.table import RowSource
from roll.operators import Operator, TaskRow, run_operators


class Rows(RowSource, Protocol):
    """Rows of a file or of an object, which can be gone through."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield all rows."""
        ...


class OperatedRows:
    """What operators left of the rows of a source, changed as they say. Rows keep their places.

    Attributes:
        name: How messages and keys name the source.
        unit: Whether places are lines or rows.
        columns: The columns that any row has now.
    """

    def __init__(self, source: Rows, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self.name, self.unit = source.name, source.unit
        self._rows = [columns for _, columns in rows]
        self._places = [place for place, _ in rows]
        self.columns = frozenset().union(*(columns.keys() for columns in self._rows)) or source.columns

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return row ``index``, counted from 0."""
        return self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield all rows."""
        return iter(self._rows)

    def place(self, index: int) -> int:
        """Return the line or row number of row ``index`` in the file."""
        return self._places[index]


def operated(sources: Iterable[Rows], operators: Sequence[Operator], report: LoadReport) -> list[Rows]:
    """Return the sources behind the operators, each of which sees the rows of all of them; what it did is reported.

    The order that the last operator gave holds within each source.

    Raises:
        DataError: An operator raised, or nothing is left.
    """
    listed = list(sources)
    if not operators:
        return listed
    rows, origin = list[TaskRow](), list[tuple[int, int]]()
    for number, source in enumerate(listed):
        for index, columns in enumerate(source):
            rows.append(TaskRow(len(rows), f"{source.name}:{source.place(index)}", dict(columns)))
            origin.append((number, source.place(index)))
    try:
        left, changes = run_operators(operators, rows, lambda row: row.number)
    except ValueError as error:
        raise DataError(f"{error}.", "correct its options in `operators.tasks`, or take it out.") from error
    report.notes += [str(change) for change in changes]
    if not left:
        said = "\n    ".join(map(str, changes))
        raise DataError(f"the operators left no row:\n    {said}", "loosen them, or take one out.")
    parts: list[list[tuple[int, Mapping[str, Any]]]] = [[] for _ in listed]
    for row in left:
        number, place = origin[row.number]
        parts[number].append((place, row.columns))
    return [OperatedRows(source, part) for source, part in zip(listed, parts, strict=True) if part]
