"""Which groups there are, where they are, and who was given which: the index of an experience store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from roll.experience.base import Reader, StoreCounts
from roll.experience.choosing import choose
from roll.experience.database import Database
from roll.experience.entries import Entry, Indexed, Scores, Segment
from roll.experience.errors import ReviewError
from roll.experience.priorities import Known
from roll.experience.reviewing import Decision, Waiting, as_text, from_text

_STANDING: Final = """
    select groups.number as number, policy_version, count(step) as used,
        case when policy_version >= :oldest then 1 else 0 end as young,
        case when max(step) >= :cool then 0 else 1 end as cool,
        coalesce(mean_score, 0.0) as mean, coalesce(score_spread, 0.0) as spread,
        coalesce(success_rate, 0.0) as success, coalesce(max(reviews.state), 'approved') as review
    from groups left join leases on leases.number = groups.number and leases.reader = :reader
    left join reviews on reviews.number = groups.number
    group by groups.number, policy_version, mean_score, score_spread, success_rate
"""
_CANDIDATES: Final = f"""
    select number, policy_version, used, mean, spread, success from ({_STANDING}) as standing
    where used < :uses and young = 1 and cool = 1 and review = 'approved'
"""
_COUNTS: Final = f"""
    select count(*),
        coalesce(sum(case when used < :uses and young = 1 and cool = 1 and review = 'approved' then 1 else 0 end), 0),
        coalesce(sum(case when used = 0 and young = 1 and review = 'approved' then 1 else 0 end), 0),
        coalesce(sum(case when used < :uses and young = 0 and review <> 'rejected' then 1 else 0 end), 0),
        coalesce(sum(case when young = 1 and review = 'waiting' then 1 else 0 end), 0),
        coalesce(sum(case when review = 'rejected' then 1 else 0 end), 0)
    from ({_STANDING}) as standing
"""
_LEASED: Final = """
    select groups.number, group_id, tag, domain, baseline, policy_version, path, digest, prefix, first_row, members,
        (select count(*) from leases as earlier where earlier.reader = leases.reader and earlier.number = leases.number
            and earlier.step < leases.step), reviews.scores
    from leases join groups on groups.number = leases.number left join segments on segments.segment = groups.segment
    left join reviews on reviews.number = groups.number
    where reader = :reader and step = :step order by position
"""
_REVIEWED: Final = """
    select groups.number, group_id, tag, domain, baseline, policy_version, path, digest, prefix, first_row, members, 0,
        reviews.scores
    from groups join reviews on reviews.number = groups.number left join segments on segments.segment = groups.segment
    where group_id = :group_id
"""
_WAITING: Final = """
    select group_id, tag, policy_version, members, coalesce(mean_score, 0.0), coalesce(score_spread, 0.0)
    from groups join reviews on reviews.number = groups.number where state = 'waiting' order by groups.number
"""
_WAIT: Final = (
    "insert into reviews (number, state, scores) select number, 'waiting', null from groups where group_id = :group_id"
)
_LOSE: Final = """
    insert into reviews (number, state, scores) values (:number, 'lost', null) on conflict (number) do update
    set state = 'lost'
"""
_DECIDE: Final = "update reviews set state = :state, scores = :scores where number = :number"
_RESCORE: Final = "update groups set mean_score = :mean, score_spread = :spread where number = :number"
_ADD: Final = """
    insert into groups (group_id, tag, domain, baseline, policy_version, segment, first_row, members, mean_score,
        score_spread, success_rate)
    values (:group_id, :tag, :domain, :baseline, :policy_version, :segment, :first_row, :members, :mean, :spread,
        :success)
    on conflict (group_id) do nothing
"""
_COMMIT: Final = """
    insert into readers (reader, trained) values (:reader, :step) on conflict (reader) do update
    set trained = case when excluded.trained > readers.trained then excluded.trained else readers.trained end
"""
_TRAINED_AT_MOST: Final = "update readers set trained = :step where reader = :reader and trained > :step"
_ANY_AGE: Final = -(2**63)


class Index:
    """The index of a store. Every change is one transaction; threads may share it, forked processes may not.

    Args:
        database: One whose tables are there.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._refused: tuple[object, ...] | None = None
        self._lost = 0

    def missing(self, group_ids: Iterable[str]) -> set[str]:
        """Return those ids that no group of the store has."""
        query = "select count(*) from groups where group_id = :group_id"
        return {each for each in group_ids if not self._database.value(query, group_id=each)}

    def add(self, entries: Sequence[Entry], segment: Segment | None = None) -> set[str]:
        """Make groups exist, and take back that nothing more will come.

        Args:
            entries: The groups; those whose ids are there stay as they are.
            segment: The file that has them. It is not kept where no group is new.

        Returns:
            The ids of those that are new.
        """
        with self._database.change():
            self._database.rows("update state set finished = 0 where finished = 1")
            new = self.missing(entry.group_id for entry in entries)
            if not new:
                return new
            place = None
            if segment is not None:
                ((place,),) = self._database.rows(
                    "insert into segments (path, digest, prefix) values (:path, :digest, :prefix) returning segment",
                    path=segment.path, digest=segment.digest, prefix=segment.prefix,
                )  # fmt: skip
            self._database.many(_ADD, [_row(entry, place) for entry in entries])
            waits = {entry.group_id for entry in entries if entry.waits and entry.group_id in new}
            self._database.many(_WAIT, [{"group_id": each} for each in sorted(waits)])
        return new

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait for a person, in the order in which they came."""
        return [Waiting(*row) for row in self._database.rows(_WAITING)]

    def reviewed(self, group_id: str) -> Indexed:
        """Return a group that waits for a person, or that was decided about.

        Raises:
            ReviewError: There is none of this id.
        """
        found = self._database.rows(_REVIEWED, group_id=group_id)
        if not found:
            raise ReviewError(f"no group {group_id!r} waits for review here, or did: name one that `roll decide` lists")
        return _indexed(*found[0])

    def decide(self, group_id: str, decision: Decision, scores: Scores) -> None:
        """Take note of what a person decided about a group.

        Args:
            group_id: The group.
            decision: What; with a score for each member, or none.
            scores: How its members did, with the scores that they have now.

        Raises:
            ReviewError: There is none of this id, or it was given out.
        """
        with self._database.change():
            number = self.reviewed(group_id).number
            if self._database.value("select count(*) from leases where number = :number", number=number):
                raise ReviewError(f"the group {group_id!r} was given out to learn from: it cannot be decided again")
            self._database.rows(_DECIDE, number=number, state=decision.state, scores=as_text(decision.scores))
            how = {"mean": _or_null(scores.mean), "spread": _or_null(scores.spread)}
            self._database.rows(_RESCORE, number=number, **how)

    def digest(self, path: str) -> str | None:
        """Return what the content of a segment was when it came in; ``None`` if there is no such segment."""
        found: str | None = self._database.value("select max(digest) from segments where path = :path", path=path)
        return found

    def lease(self, reader: Reader, count: int, step: int) -> list[Indexed] | None:
        """Choose the groups of a step, or return those that it has; see ``ExperienceStore.lease``.

        Raises:
            ValueError: ``count`` or ``step`` cannot be.
        """
        if count < 1:
            raise ValueError(f"a step needs at least one group, got {count}")
        asked = (reader, count, step, self._database.state())
        if asked == self._refused:
            return None
        with self._database.change():
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
                given = {"reader": reader.name, "step": step}
                rows = [{**given, "position": at, "number": number} for at, number in enumerate(numbers)]
                self._database.many(
                    "insert into leases (reader, step, position, number) values (:reader, :step, :position, :number)",
                    rows,
                )
                found = self._leased(reader, step)
        return found

    def lose(self, group_ids: Sequence[str]) -> None:
        """Take note that groups are gone, which no folder and no database lets happen.

        Those that no step has may come in again. Those that one has stay, so that nobody learns from them twice, and
        are never given out again.
        """
        with self._database.change():
            standing = "select number, (select count(*) from leases where leases.number = groups.number) from groups"
            for group_id in group_ids:
                for number, leases in self._database.rows(f"{standing} where group_id = :group_id", group_id=group_id):
                    gone = self._database.value(
                        "select count(*) from reviews where number = :number and state = 'lost'", number=number
                    )
                    self._lost += not gone
                    if leases:
                        self._database.rows(_LOSE, number=number)
                    else:
                        self._database.rows("delete from reviews where number = :number", number=number)
                        self._database.rows("delete from groups where number = :number", number=number)

    def commit(self, reader: Reader, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        with self._database.change():
            self._database.rows(_COMMIT, reader=reader.name, step=step)

    def rewind(self, reader: Reader, step: int) -> None:
        """Forget the leases of all later steps."""
        with self._database.change():
            self._rewind(reader.name, step)

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``, and every reader's leases from the first on that has others."""
        with self._database.change():
            first = "(select number from groups order by number limit :count) as kept"
            last = self._database.value(f"select coalesce(max(number), 0) from {first}", count=count)
            given = "select reader, min(step) from leases where number > :last group by reader"
            for reader, step in self._database.rows(given, last=last):
                self._rewind(reader, step - 1)
            self._database.rows("delete from reviews where number > :last", last=last)
            self._database.rows("delete from groups where number > :last", last=last)
            unused = "select segment from groups where segment is not null"
            self._database.rows(f"delete from segments where segment not in ({unused})")

    def finish(self) -> None:
        """Take note that nothing more will come."""
        with self._database.change():
            self._database.rows("update state set finished = 1")

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return bool(self._database.value("select finished from state"))

    def counts(self, reader: Reader) -> StoreCounts:
        """Return how the store stands for a reader before its next step."""
        leased = "select count(*) from leases where reader = :reader"
        with self._database.view():
            last, trained = self._last(reader), self._trained(reader)
            options = self._options(reader, max(last, trained) + 1)
            ((groups, available, fresh, *others),) = self._database.rows(_COUNTS, **options)
            given = self._database.value(leased, reader=reader.name)
            done = self._database.value(f"{leased} and step <= :step", reader=reader.name, step=trained)
        dropped, waiting, rejected = map(int, others)
        return StoreCounts(
            int(groups), int(available), int(fresh), given - done, done, dropped, waiting, rejected, self._lost
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _candidates(self, reader: Reader, step: int) -> list[Known]:
        rows = self._database.rows(_CANDIDATES, **self._options(reader, step))
        return [Known(number, version, step, used, *scores) for number, version, used, *scores in rows]

    def _leased(self, reader: Reader, step: int) -> list[Indexed]:
        return [_indexed(*row) for row in self._database.rows(_LEASED, reader=reader.name, step=step)]

    def _rewind(self, reader: str, step: int) -> None:
        self._database.rows("delete from leases where reader = :reader and step > :step", reader=reader, step=step)
        self._database.rows(_TRAINED_AT_MOST, reader=reader, step=step)

    def _require_last(self, reader: Reader, step: int) -> None:
        last = max(self._last(reader), self._trained(reader))
        if step <= last:
            raise ValueError(
                f"step {step} of reader {reader.name!r} has no groups, and step {last} after it was leased or trained "
                f"already; rewind({step - 1}) begins again there"
            )

    def _last(self, reader: Reader) -> int:
        query = "select coalesce(max(step), 0) from leases where reader = :reader"
        return int(self._database.value(query, reader=reader.name))

    def _trained(self, reader: Reader) -> int:
        query = "select coalesce(max(trained), 0) from readers where reader = :reader"
        return int(self._database.value(query, reader=reader.name))

    @staticmethod
    def _options(reader: Reader, step: int) -> dict[str, Any]:
        oldest = reader.oldest(step)
        oldest = _ANY_AGE if oldest is None else oldest
        return {"reader": reader.name, "uses": reader.uses, "oldest": oldest, "cool": step - reader.cooldown}


def _row(entry: Entry, segment: int | None) -> dict[str, Any]:
    """Return the values of a group. A score that is none is null, and counts as 0."""
    return {
        "group_id": entry.group_id,
        "tag": entry.tag,
        "domain": entry.domain,
        "baseline": None if entry.baseline is None else repr(float(entry.baseline)),
        "policy_version": entry.policy_version,
        "segment": segment,
        "first_row": entry.first_row,
        "members": entry.members,
        "mean": _or_null(entry.scores.mean),
        "spread": _or_null(entry.scores.spread),
        "success": _or_null(entry.scores.success),
    }


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


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
    replaced: str | None,
) -> Indexed:
    known = None if baseline is None else float(baseline)
    segment = None if path is None else Segment(path, digest, prefix)
    entry = Entry(group_id, tag, domain, known, policy_version, first_row, members)
    return Indexed(number, entry, segment, uses, from_text(replaced))
