"""Demonstrations that several teachers read: whose each row is, its tag says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.errors import FixableError, choose_from
from roll.config.worker import DataArgs
from roll.data.loading import Source, open_sources
from roll.data.rows import as_text, lookup
from roll.data.supervised import AddRow, DemonstrationTable, EncodeDemonstration, fill
from roll.data.supervised_rows import Columns, DemonstrationReader


class TaughtTable(DemonstrationTable):
    """Demonstrations with the number of the teacher of each row; arguments as there."""

    def __init__(self, args: DataArgs, limit: int) -> None:
        super().__init__(args, limit)
        self._teachers: list[int] = []

    def teach(self, teacher: int) -> None:
        """Say who teaches the row that was added last."""
        self._teachers.append(teacher)

    def teacher(self, row: int) -> int:
        """Return the number of the teacher of a row."""
        return self._teachers[row]


def load_taught(
    args: DataArgs,
    keys: DemonstrationColumns,
    limit: int,
    encode: EncodeDemonstration,
    teachers: Mapping[str, int],
    others: int | None,
) -> TaughtTable:
    """Read all rows of a section.

    Args:
        args: The ``data_args`` section; ``tag`` names the column that says whose a row is.
        keys: Which columns hold what.
        limit: Most tokens of a sequence.
        encode: Makes tokens of a row.
        teachers: The number of the teacher of each tag.
        others: That of rows with another tag, or none; ``None``: there are no such rows.

    Raises:
        DataError: If a file or a row cannot be used, or nobody teaches a row; the message names place and fix.
    """
    table = TaughtTable(args, limit)

    def of_file(rows: Source) -> AddRow:
        reader = DemonstrationReader(Columns.of(keys, rows.columns, rows.name), args.system_prompt)

        def add(row: Mapping[str, Any]) -> None:
            teacher = _teacher(as_text(lookup(row, args.tag)), args.tag, teachers, others)
            if sequences := table.fitted(encode(reader.read(row))):
                table.add(sequences)
                table.teach(teacher)

        return add

    fill(table, open_sources(args, table.report), of_file)
    return table


def _teacher(tag: str | None, column: str, teachers: Mapping[str, int], others: int | None) -> int:
    """Return the number of the teacher of rows with a tag.

    Raises:
        FixableError: Nobody teaches them.
    """
    found = teachers.get(tag or "", others)
    if found is not None:
        return found
    fix = "add a teacher: section for all that is left, or the tag to one of teachers."
    if not tag:
        fix = f"write a tag into the column {column!r}, or name the column that has it with `tag`; or {fix}"
        raise FixableError(f"the row has no {column!r}, so it is not known who teaches it.", fix)
    raise FixableError(f"nobody teaches the tag {tag!r}.", f"{choose_from(tag, teachers)} Or {fix}")
