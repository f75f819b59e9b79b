"""Which groups there are, where they are, and who was given which: the SQLite index of an experience store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any, Final

from roll.experience.base import Reader, StoreCounts
from roll.experience.choosing import choose
from roll.experience.entries import Entry, Indexed, Segment
from roll.experience.priorities import Known

_STANDING: Final = """
    select groups.number, policy_version, count(step) as used, policy_version >= :oldest as young,
        coalesce(max(step) < :cool, 1) as cool,
        coalesce(mean_score, 0.0) as mean, coalesce(score_spread, 0.0) as spread, coalesce(success_rate, 0.0) as success
    from groups left join leases on leases.number = groups.number and leases.reader = :reader
    group by groups.number
"""
_CANDIDATES: Final = f"""
    select number, policy_version, used, mean, spread, success from ({_STANDING})
    where used < :uses and young and cool
"""
_COUNTS: Final = f"""
    select count(*), coalesce(sum(left and young and cool), 0), coalesce(sum(not used and young), 0),
        coalesce(sum(left and not young), 0)
    from (select *, used < :uses as left from ({_STANDING}))
"""
_LEASED: Final = """
    select groups.number, group_id, tag, domain, baseline, policy_version, path, digest, prefix, first_row, members,
        (select count(*) from leases as before where before.reader = leases.reader and before.number = leases.number
            and before.step < leases.step)
    from leases join groups using (number) left join segments using (segment)
    where reader = ? and step = ? order by position
"""
_ANY_AGE: Final = -(2**63)


class Index:
    """The index of a store. Every change is one transaction; threads may share it, forked processes may not.

    Args:
        database: An open connection without transactions of its own, whose tables are there.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._lock = threading.RLock()
        self._refused: tuple[object, ...] | None = None

    def missing(self, group_ids: Iterable[str]) -> set[str]:
        """Return those ids that no group of the store has."""
        return {each for each in group_ids if not self._value("select count(*) from groups where group_id = ?", each)}

    def add(self, entries: Sequence[Entry], segment: Segment | None = None) -> set[str]:
        """Make groups exist, and take back that nothing more will come.

        Args:
            entries: The groups; those whose ids are there stay as they are.
            segment: The file that has them. It is not kept where no group is new.

        Returns:
            The ids of those that are new.
        """
        with self._change() as database:
            database.execute("update state set finished = 0 where finished")
            new = self.missing(entry.group_id for entry in entries)
            if not new:
                return new
            place = None
            if segment is not None:
                row = (segment.path, segment.digest, segment.prefix)
                place = database.execute("insert into segments (path, digest, prefix) values (?, ?, ?)", row).lastrowid
            database.executemany(
                "insert or ignore into groups (group_id, tag, domain, baseline, policy_version, segment, first_row,"
                " members, mean_score, score_spread, success_rate) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(each.group_id, each.tag, each.domain, None if each.baseline is None else repr(float(each.baseline)),
                  each.policy_version, place, each.first_row, each.members, *astuple(each.scores)) for each in entries],
            )  # fmt: skip
        return new

    def digest(self, path: str) -> str | None:
        """Return what the content of a segment was when it came in; ``None`` if there is no such segment."""
        return self._value("select max(digest) from segments where path = ?", path)

    def lease(self, reader: Reader, count: int, step: int) -> list[Indexed] | None:
        """Choose the groups of a step, or return those that it has; see ``ExperienceStore.lease``.

        Raises:
            ValueError: ``count`` or ``step`` cannot be.
        """
        if count < 1:
            raise ValueError(f"a step needs at least one group, got {count}")
        asked = (reader, count, step, self._state())
        if asked == self._refused:
            return None
        with self._change() as database:
            found = self._leased(reader, step)
            if found and len(found) != count:
                raise ValueError(
                    f"step {step} of reader {reader.name!r} has {len(found)} groups already and is asked for {count}; "
                    f"rewind({step - 1}) forgets them"
                )
            if not found:
                self._require_last(reader, step)
                numbers = choose(reader, count, self._candidates(reader, step))
                if numbers is None:
                    self._refused = asked
                    return None
                rows = [(reader.name, step, position, number) for position, number in enumerate(numbers)]
                database.executemany("insert into leases (reader, step, position, number) values (?, ?, ?, ?)", rows)
                found = self._leased(reader, step)
        return found

    def commit(self, reader: Reader, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        with self._change() as database:
            database.execute(
                "insert into readers (reader, trained) values (?, ?)"
                " on conflict (reader) do update set trained = max(trained, excluded.trained)",
                (reader.name, step),
            )

    def rewind(self, reader: Reader, step: int) -> None:
        """Forget the leases of all later steps."""
        with self._change() as database:
            database.execute("delete from leases where reader = ? and step > ?", (reader.name, step))
            database.execute("update readers set trained = min(trained, ?) where reader = ?", (step, reader.name))

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``, and every reader's leases from the first on that has others."""
        with self._change() as database:
            kept = self._value("select coalesce(max(number), 0) from (select number from groups order by number"
                               " limit ?)", count)  # fmt: skip
            given = "select reader, min(step) from leases where number > ? group by reader"
            for reader, step in database.execute(given, (kept,)).fetchall():
                database.execute("delete from leases where reader = ? and step >= ?", (reader, step))
                database.execute("update readers set trained = min(trained, ?) where reader = ?", (step - 1, reader))
            database.execute("delete from groups where number > ?", (kept,))
            database.execute("delete from segments where segment not in (select segment from groups)")

    def finish(self) -> None:
        """Take note that nothing more will come."""
        with self._change() as database:
            database.execute("update state set finished = 1")

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return bool(self._value("select finished from state"))

    def counts(self, reader: Reader) -> StoreCounts:
        """Return how the store stands for a reader before its next step."""
        with self._lock:
            self._database.execute("begin")  # one view for all that is read
            try:
                last, trained = self._last(reader), self._trained(reader)
                options = self._options(reader, max(last, trained) + 1)
                groups, available, fresh, dropped = self._database.execute(_COUNTS, options).fetchone()
                given = self._value("select count(*) from leases where reader = ?", reader.name)
                done = self._value("select count(*) from leases where reader = ? and step <= ?", reader.name, trained)
            finally:
                self._database.execute("rollback")
        return StoreCounts(groups, available, fresh, leased=given - done, trained=done, dropped=dropped)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._database.close()

    def _candidates(self, reader: Reader, step: int) -> list[Known]:
        rows = self._database.execute(_CANDIDATES, self._options(reader, step))
        return [Known(number, version, step, used, *scores) for number, version, used, *scores in rows]

    def _leased(self, reader: Reader, step: int) -> list[Indexed]:
        rows = self._database.execute(_LEASED, (reader.name, step)).fetchall()
        return [_indexed(*row) for row in rows]

    def _require_last(self, reader: Reader, step: int) -> None:
        last = max(self._last(reader), self._trained(reader))
        if step <= last:
            raise ValueError(
                f"step {step} of reader {reader.name!r} has no groups, and step {last} after it was leased or trained "
                f"already; rewind({step - 1}) begins again there"
            )

    def _last(self, reader: Reader) -> int:
        return self._value("select coalesce(max(step), 0) from leases where reader = ?", reader.name)

    def _trained(self, reader: Reader) -> int:
        return self._value("select coalesce(max(trained), 0) from readers where reader = ?", reader.name)

    @staticmethod
    def _options(reader: Reader, step: int) -> dict[str, Any]:
        oldest = reader.oldest(step)
        oldest = _ANY_AGE if oldest is None else oldest
        return {"reader": reader.name, "uses": reader.uses, "oldest": oldest, "cool": step - reader.cooldown}

    def _state(self) -> tuple[int, int]:
        """Return what differs after any change: to ask again and again is cheap while there is none."""
        return self._value("pragma data_version"), self._database.total_changes

    def _value(self, query: str, *values: Any) -> Any:
        with self._lock:
            return self._database.execute(query, values).fetchone()[0]

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._database):
            yield self._database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Make all of what is written meanwhile true at once, or nothing of it. Others wait for it from its begin on."""
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    finally:
        if database.in_transaction:
            database.execute("rollback")


def _indexed(
    number: int,
    group_id: str,
    tag: str,
    domain: str,
    baseline: str | None,
    policy_version: int,
    path: str | None,
    digest: str,
    prefix: str,
    first_row: int,
    members: int,
    uses: int,
) -> Indexed:
    known = None if baseline is None else float(baseline)
    segment = None if path is None else Segment(path, digest, prefix)
    return Indexed(number, Entry(group_id, tag, domain, known, policy_version, first_row, members), segment, uses)
