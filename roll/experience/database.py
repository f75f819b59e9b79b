"""The database behind the index of a store: what the index asks of any, and SQLite's own, for one machine."""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class Database(ABC):
    """A database with the tables of a store. Threads may share it, forked processes may not.

    Queries name their values (``:name``), and are ones that SQLite and PostgreSQL both understand.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0

    @contextmanager
    def change(self) -> Iterator[None]:
        """Make all of what is written meanwhile true at once, or nothing of it. Others wait for it from its begin."""
        with self._lock:
            if self._depth:
                yield  # a part of the one that is under way
                return
            with self._entered(), self._transaction(writes=True):
                yield

    @contextmanager
    def view(self) -> Iterator[None]:
        """Have one view for all that is read meanwhile."""
        with self._lock, self._entered(), self._transaction(writes=False):
            yield

    def value(self, query: str, **values: Any) -> Any:
        """Return the first column of the first row."""
        return self.rows(query, **values)[0][0]

    @abstractmethod
    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query; one that writes returns none, or those that it says."""

    @abstractmethod
    def many(self, query: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each row of values."""

    @abstractmethod
    def state(self) -> Hashable:
        """Return what differs after any change: to ask again and again is cheap while there is none."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    @abstractmethod
    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[None]:
        """Surround a change, or a view."""

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


class SqliteDatabase(Database):
    """A file of SQLite, or one in memory.

    Args:
        connection: An open connection without transactions of its own.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def many(self, query: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each row of values."""
        with self._lock:
            self._connection.executemany(query, rows)

    def state(self) -> Hashable:
        """Return what differs after any change."""
        return self.value("pragma data_version"), self._connection.total_changes

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[None]:
        with transaction(self._connection, "begin immediate" if writes else "begin"):
            yield


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "begin immediate") -> Iterator[None]:
    """Surround what is written meanwhile with a transaction, which is undone where it fails."""
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
