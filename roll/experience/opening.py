"""The SQLite file of an experience store: its tables, its version, and how it is opened."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from roll.experience.errors import StoreError
from roll.experience.index import transaction

SCHEMA_VERSION: Final = 2
"""Raised when the tables change; other versions are refused."""

_APPLICATION: Final = 0x524F4C45
_BUSY_SECONDS: Final = 60.0
# A baseline is text: SQLite has no numbers that are not one. A score that is none is null, and counts as 0.
_TABLES: Final = (
    "create table segments (segment integer primary key, path text not null unique, digest text not null,"
    " prefix text not null)",
    "create table groups (number integer primary key, group_id text not null unique, tag text not null,"
    " domain text not null, baseline text, policy_version integer not null, segment integer references segments,"
    " first_row integer not null, members integer not null, mean_score real, score_spread real, success_rate real)",
    "create index groups_by_version on groups (policy_version, number)",
    "create table leases (reader text, step integer, position integer, number integer not null references groups,"
    " primary key (reader, step, position)) without rowid",
    "create unique index leases_by_group on leases (reader, number, step)",
    "create table readers (reader text primary key, trained integer not null) without rowid",
    "create table state (finished integer not null)",
    "insert into state values (0)",
    f"pragma application_id = {_APPLICATION}",
    f"pragma user_version = {SCHEMA_VERSION}",
)


def open_in_memory() -> sqlite3.Connection:
    """Return a connection to an empty index that nobody else sees and that ends with it."""
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with transaction(database):
        _create(database)
    return database


def open_file(path: Path, *, segments: Path) -> sqlite3.Connection:
    """Return a connection to the index of a folder, which is made where there is none.

    What a transaction wrote is on the disk when it is over (``synchronous=full``). Readers do not wait for writers
    (write-ahead log), which needs all programs on one machine and a disk of its own.

    Args:
        path: The file.
        segments: Where the segments of the folder are.

    Raises:
        StoreError: It is no index, one of another version, or gone while there are segments.
    """
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        database.execute("pragma synchronous = full")
        with transaction(database):
            _require_ours(database, path, segments)
        _use_log(database)
    except sqlite3.DatabaseError as error:
        database.close()
        if isinstance(error, sqlite3.OperationalError):
            raise
        fix = "Point the store at another folder, or put back the index from a copy."
        raise StoreError(f"{path} is no index of an experience store: {error}. {fix}") from error
    except BaseException:
        database.close()
        raise
    return database


def _require_ours(database: sqlite3.Connection, path: Path, segments: Path) -> None:
    version = database.execute("pragma user_version").fetchone()[0]
    if version == 0 and not database.execute("select count(*) from sqlite_master").fetchone()[0]:
        if any(segments.glob("*.parquet")):
            raise StoreError(
                f"{path} is empty or gone, but {segments} has segments, whose groups only the index knows. "
                "Put back the index from a copy, or move the folder away to begin with an empty store."
            )
        _create(database)
    elif database.execute("pragma application_id").fetchone()[0] != _APPLICATION:
        raise StoreError(f"{path} is a database of something else. Point the experience store at another folder.")
    elif version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has version {version} of the experience store; this version of roll reads version "
            f"{SCHEMA_VERSION}. Use the roll that wrote it, or begin with an empty store in another folder."
        )


def _create(database: sqlite3.Connection) -> None:
    for statement in _TABLES:
        database.execute(statement)


def _use_log(database: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for others here as it does elsewhere."""
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            if database.execute("pragma journal_mode").fetchone()[0] != "wal":
                database.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or (
                time.monotonic() > until
            ):
                raise
            time.sleep(0.01)
