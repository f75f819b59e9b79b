"""The SQLite file of an experience store: whose it is, its version, and how it is opened."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from roll.experience.database import SqliteDatabase, transaction
from roll.experience.errors import StoreError
from roll.experience.tables import SCHEMA_VERSION, TABLES, UPGRADES

_APPLICATION: Final = 0x524F4C45
_BUSY_SECONDS: Final = 60.0
_MARKS: Final = (f"pragma application_id = {_APPLICATION}", f"pragma user_version = {SCHEMA_VERSION}")


def open_in_memory() -> SqliteDatabase:
    """Return an empty index that nobody else sees and that ends with it."""
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with transaction(database):
        _create(database)
    return SqliteDatabase(database)


def open_file(path: Path, *, segments: Path) -> SqliteDatabase:
    """Return the index of a folder, which is made where there is none.

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
    return SqliteDatabase(database)


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
    elif version in UPGRADES:
        for statement in (*UPGRADES[version], *_MARKS):
            database.execute(statement)
    elif version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has version {version} of the experience store; this version of roll reads version "
            f"{SCHEMA_VERSION}. Use the roll that wrote it, or begin with an empty store in another folder."
        )


def _create(database: sqlite3.Connection) -> None:
    for statement in (*TABLES, *_MARKS):
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
