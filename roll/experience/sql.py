"""An experience store in a database: PostgreSQL, for programs on any number of machines, or a file of SQLite."""

from __future__ import annotations

import io
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

try:
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
except ImportError as error:
    raise ImportError(
        f"experience.type: sql needs the package sqlalchemy, which cannot be imported ({error}). Install it with "
        "`pip install 'roll-rl[sql]'`."
    ) from error

from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.database import Database
from roll.experience.entries import Indexed, Segment, entries_of, first_of_each, group_of
from roll.experience.errors import SegmentError, StoreError
from roll.experience.index import Index
from roll.experience.indexed import TRAIN, IndexedStore
from roll.experience.reviewing import Decision, Waiting
from roll.experience.segments import digest_of_bytes
from roll.experience.tables import SCHEMA_VERSION, TABLES, UPGRADES, in_postgresql
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.store import open_trajectories, trajectories_of, write_trajectories

Result = TypeVar("Result")

PATIENCE: Final = 120.0
"""Seconds that a server may be gone before that is an error."""

_BUSY_SECONDS: Final = 60
_KEPT: Final = 2
_ITS_OWN: Final = (
    "create table contents (segment integer primary key references segments on delete cascade,"
    " content {bytes} not null)",
    "create table experience_store (version integer not null, changes integer not null)",
    f"insert into experience_store values ({SCHEMA_VERSION}, 0)",
)


class SqlDatabase(Database):
    """A database behind SQLAlchemy, whose tables are made where there are none.

    Args:
        url: As SQLAlchemy writes it: ``postgresql://user@host/database``, ``sqlite:///file``.

    Raises:
        StoreError: It cannot be reached, is of another kind, or its store has another version.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._engine = _engine(url)
        self._postgresql = self._engine.dialect.name == "postgresql"
        self._connection: Any = None
        self._changed = False
        try:
            self._require_tables()
        except BaseException:
            self._engine.dispose()
            raise

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._lock:
            if self._connection is None:
                with self._engine.connect() as connection:
                    return self._rows(connection, query, values)
            return self._rows(self._connection, query, values)

    def many(self, query: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each row of values, within a change."""
        if rows:
            self._connection.execute(sqlalchemy.text(query), [dict(row) for row in rows])
            self._changed = True

    def state(self) -> Hashable:
        """Return what differs after any change."""
        return self.value("select changes from experience_store")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _rows(self, connection: Any, query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        found = connection.execute(sqlalchemy.text(query), dict(values))
        if not query.lstrip().startswith("select"):
            self._changed |= found.rowcount != 0
        return [tuple(row) for row in found.fetchall()] if found.returns_rows else []

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[None]:
        options = {"isolation_level": "REPEATABLE READ"} if self._postgresql and not writes else {}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            self._connection, self._changed = connection, False
            try:
                if writes and self._postgresql:
                    # Changes come one after the other, as in SQLite; each statement sees what was true when it began.
                    self.rows("select changes from experience_store for update")
                yield
                if writes and self._changed:
                    self.rows("update experience_store set changes = changes + 1")
            finally:
                self._connection = None

    def _require_tables(self) -> None:
        with self._engine.connect() as connection, connection.begin():
            if self._postgresql:
                # Two programs that begin at once must not both make them.
                connection.execute(sqlalchemy.text("select pg_advisory_xact_lock(1380928581)"))
            there = sqlalchemy.inspect(connection).get_table_names()
            if "experience_store" not in there:
                clashes = {"segments", "groups", "leases", "readers", "reviews", "state", "contents"} & set(there)
                if clashes:
                    raise StoreError(
                        f"{self._shown} has tables of something else ({', '.join(sorted(clashes))}). Name a database, "
                        "or a schema, of its own."
                    )
                for statement in self._tables():
                    connection.execute(sqlalchemy.text(statement))
            version = connection.execute(sqlalchemy.text("select version from experience_store")).scalar_one()
            for statement in UPGRADES.get(version, ()):
                connection.execute(sqlalchemy.text(in_postgresql(statement) if self._postgresql else statement))
            if version in UPGRADES:
                connection.execute(sqlalchemy.text(f"update experience_store set version = {SCHEMA_VERSION}"))
                version = SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self._shown} has version {version} of the experience store; this version of roll reads version "
                f"{SCHEMA_VERSION}. Use the roll that wrote it, or name an empty database."
            )

    def _tables(self) -> list[str]:
        statements = [*TABLES, *(each.replace("{bytes}", "blob") for each in _ITS_OWN)]
        if not self._postgresql:
            return statements
        own = (each.replace("{bytes}", "bytea").replace(" integer ", " bigint ") for each in _ITS_OWN)
        return [*(in_postgresql(each) for each in TABLES), *own]

    @property
    def _shown(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)


class SqlStore(IndexedStore):
    """Groups between what samples and what learns, all of them in a database.

    A call of :meth:`append` is one transaction: its groups are there, or none. Where the server is gone, calls wait
    until it is back: each of them may be made again without another outcome.

    Args:
        url: The database, as SQLAlchemy writes it.
        reader: Who learns, and how.
        patience: Seconds that the server may be gone.

    Raises:
        StoreError: It cannot be used.
    """

    def __init__(self, url: str, reader: Reader = TRAIN, *, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._database = self._again(lambda: SqlDatabase(url))
        super().__init__(Index(self._database), reader)
        self._kept: dict[str, bytes] = {}
        self._reading = threading.Lock()

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new; see ``ExperienceStore.append``.

        Raises:
            ValueError: A number does not fit its column (token ids are 32-bit, seeds unsigned 64-bit). No group of the
                call is kept.
        """
        return self._again(lambda: self._append(first_of_each(groups), policy_version))

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups of a step; see ``ExperienceStore.lease``."""
        return self._again(lambda: super(SqlStore, self).lease(count, step))

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait for a person."""
        return self._again(super().waiting)

    def look(self, group_id: str) -> TrajectoryGroup:
        """Return a group that waits, or that was decided about."""
        return self._again(lambda: super(SqlStore, self).look(group_id))

    def decide(self, group_id: str, decision: Decision) -> None:
        """Take note of what a person decided about a group."""
        self._again(lambda: super(SqlStore, self).decide(group_id, decision))

    def commit(self, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        self._again(lambda: super(SqlStore, self).commit(step))

    def rewind(self, step: int) -> None:
        """Forget the leases of all steps after this one."""
        self._again(lambda: super(SqlStore, self).rewind(step))

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``; see ``ExperienceStore.keep_first``."""
        self._again(lambda: super(SqlStore, self).keep_first(count))

    def finish(self) -> None:
        """Take note that nothing more will be appended."""
        self._again(super().finish)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be appended."""
        return self._again(lambda: self._index.finished)

    def counts(self) -> StoreCounts:
        """Return how the store stands for its reader."""
        return self._again(super().counts)

    def close(self) -> None:
        """Let go of all connections. What was appended and leased stays."""
        self._index.close()

    def _append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        missing = self._index.missing(group.group_id for group in groups)
        new = [group for group in groups if group.group_id in missing]
        if not new:
            return len(self._index.add([]))
        content = _content([member for group in new for member in group.trajectories], policy_version)
        name = uuid.uuid4().hex
        with self._database.change():
            kept = self._index.add(entries_of(new, policy_version), Segment(name, digest_of_bytes(content)))
            if kept:
                segment = self._database.value("select segment from segments where path = :path", path=name)
                self._database.rows(
                    "insert into contents values (:segment, :content)", segment=segment, content=content
                )
        return len(kept)

    def groups_of(self, found: Sequence[Indexed]) -> list[TrajectoryGroup]:
        """Return groups of the index, as they were appended."""
        with self._reading:
            return [group_of(each, self._members(each)) for each in found]

    def _members(self, indexed: Indexed) -> list[Trajectory]:
        segment, first = indexed.segment, indexed.entry.first_row
        assert segment is not None, "every group of a database has a segment"
        content = self._content(segment)
        with open_trajectories(io.BytesIO(content)) as file:
            return trajectories_of(file.read().slice(first, indexed.entry.members))

    def _content(self, segment: Segment) -> bytes:
        if segment.path not in self._kept:
            query = (
                "select content from contents join segments on segments.segment = contents.segment where path = :path"
            )
            found = self._database.rows(query, path=segment.path)
            content = bytes(found[0][0]) if found else b""
            if digest_of_bytes(content) != segment.digest:
                raise SegmentError(Path(segment.path), "is damaged or gone in the database")
            self._kept[segment.path] = content
            while len(self._kept) > _KEPT:
                self._kept.pop(next(iter(self._kept)))
        return self._kept[segment.path]

    def _again(self, call: Callable[[], Result]) -> Result:
        """Call until the server answers.

        Raises:
            StoreError: It does not for too long.
        """
        until, wait = time.monotonic() + self._patience, 0.05
        while True:
            try:
                return call()
            except (OperationalError, DBAPIError) as error:
                if isinstance(error, ProgrammingError) or not _is_gone(error):
                    raise
                if time.monotonic() > until:
                    raise StoreError(
                        f"the database of the experience store does not answer: {error.orig}. Start it again, or "
                        "correct experience.path."
                    ) from error
                time.sleep(wait)
                wait = min(2 * wait, 2.0)


def _is_gone(error: DBAPIError) -> bool:
    """Whether the server went away, is not there yet, or gave a transaction up that may be tried again."""
    return error.connection_invalidated or isinstance(error, OperationalError)


def _content(members: Sequence[Trajectory], policy_version: int) -> bytes:
    """Return members as the file that a folder would have of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segment.parquet"
        write_trajectories(path, members, step=policy_version, phase="train", run="experience")
        return path.read_bytes()


def _engine(url: str) -> Any:
    """Return the connections to a database.

    Raises:
        StoreError: The address cannot be read, is of another kind of database, or its driver is not installed.
    """
    try:
        address = sqlalchemy.make_url(url)
        kind = address.get_backend_name()
        if kind not in ("postgresql", "sqlite"):
            raise StoreError(
                f"an experience store can be in PostgreSQL or SQLite, not in {kind}. Correct experience.path."
            )
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        if kind == "postgresql":
            return sqlalchemy.create_engine(address, pool_pre_ping=True, pool_size=2)
        engine = sqlalchemy.create_engine(address, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})
    except (sqlalchemy.exc.ArgumentError, ImportError) as error:
        fix = "Write it as postgresql://user@host/database or sqlite:///file, and install roll-rl[sql]."
        raise StoreError(f"experience.path cannot be used as the address of a database: {error}. {fix}") from error

    # The driver's own transactions begin too late: two that both read first could not both write.
    @sqlalchemy.event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        connection.isolation_level = None
        connection.execute("pragma foreign_keys = on")
        # With less, a transaction whose journal is removed is undone where the machine's power is cut before that is on
        # the disk: https://www.sqlite.org/pragma.html#pragma_synchronous.
        connection.execute("pragma synchronous = extra")

    @sqlalchemy.event.listens_for(engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql("begin immediate")

    return engine
