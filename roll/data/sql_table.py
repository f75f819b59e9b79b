"""Tables of databases as sets of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll.data.errors import DataError, Unit
from roll.data.report import FileCounts, LoadReport


class SqlTable:
    """The rows of a table in the order of its primary key, which is their place. They are read once, into memory.

    Args:
        name: How messages and keys name it.
        rows: The rows.
        columns: Their columns.
    """

    unit: Unit = "row"

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        self.name = name
        self.columns = frozenset(columns)
        self._rows = rows

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
        """Return the number of row ``index``, counted from 1."""
        return index + 1


def open_sql_table(address: str, report: LoadReport, max_rows: int | None = None) -> SqlTable:
    """Read a table.

    Args:
        address: The database as SQLAlchemy writes it, and the table: ``postgresql://user@host/tasks#questions``.
        report: Counts the rows.
        max_rows: Read only so many rows from the start.

    Raises:
        DataError: It cannot be reached, has no such table, or the table has no primary key or no rows.
    """
    database, _, table = address.rpartition("#")
    if not database:
        raise DataError(
            "the address of a database names no table.", "write it behind a #: …/tasks#questions.", file=address
        )
    try:
        import sqlalchemy
    except ImportError as error:
        what = f"tables of databases need the package sqlalchemy, which cannot be imported ({error})."
        raise DataError(what, "pip install 'roll-rl[sql]'.", file=table) from error
    try:
        url = sqlalchemy.make_url(database)
        url = url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
        engine = sqlalchemy.create_engine(url)
        try:
            found = sqlalchemy.Table(table, sqlalchemy.MetaData(), autoload_with=engine)
            keys = list(found.primary_key.columns)
            if not keys:
                what = "the table has no primary key, so its rows have no order that a run could go on in."
                raise DataError(what, "give it one.", file=table)
            with engine.connect() as connection:
                asked = sqlalchemy.select(found).order_by(*keys).limit(max_rows)
                rows = [dict(row) for row in connection.execute(asked).mappings()]
        finally:
            engine.dispose()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        what = f"the table cannot be read: {error}."
        raise DataError(what, "correct the address, or start the server.", file=table) from error
    if not rows:
        raise DataError("the table has no rows.", "take it out of `file_name`, or fill it.", file=table)
    report.files.append(FileCounts(table, read=len(rows)))
    return SqlTable(table, rows, [column.name for column in found.columns])
