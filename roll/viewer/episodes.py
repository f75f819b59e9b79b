"""The episodes of a run as a table that answers in milliseconds: DuckDB over the stored files.

Numbers are read at once, text (for the search) when somebody first asks for it. Only what changed is read again.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from roll.common.file_stamp import FileStamp
from roll.config import ConfigError, Problem
from roll.config.errors import choose_from
from roll.trajectories.learned import Learned, learned_path, read_learned
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.store import TrajectoryReader, open_trajectories, read_trajectories
from roll.viewer.filters import PAGE, Filter
from roll.viewer.run_folder import RunFolder

_SEAT: Final = "seat"
_NUMBERS: Final = [
    *("step", "phase", "tag", "group_id", "episode", "seed", "status", "score", "success", "error"),
    *(_SEAT, "completion_tokens", "messages.list.element.content", "turns.list.element.action"),
    *("turns.list.element.policy_version.oldest", "turns.list.element.policy_version.newest"),
]
_NAMED: Final = ("tag", "group_id")
"""What stages may have alike."""
OF_STAGE: Final = ":"
"""Between a stage and what it calls something, in the review of a whole run: ``sft:SimpleSokoban``."""
_TEXTS: Final = [
    *("error", "final_observation", "messages.list.element.content"),
    *(f"turns.list.element.{name}" for name in ("observation", "response", "action")),
]
_BROKEN: Final = ", ".join(f"'{status.value}'" for status in Status if status.is_error)
_AT_A_TIME: Final = 16
"""Files whose rows are handed to the data base at once, for which a page may have to wait."""

_TABLES: Final = """
create table episodes (
    id bigint, file integer, row integer, step bigint, phase varchar, tag varchar, group_id varchar,
    natural_group bigint, episode bigint, seed ubigint, status varchar, score double, success boolean, broken boolean,
    error varchar, tokens bigint, turns integer, oldest bigint, newest bigint, answer boolean, prompt varchar,
    seat varchar, group_spread double
);
create table texts (id bigint, file integer, text varchar);
create table labelled (id bigint, label varchar);
"""
_INSERT: Final = f"""
insert into episodes select
    file::bigint << 32 | row, file, row, step, phase, tag, group_id,
    try_cast(regexp_extract(group_id, '(\\d{{1,18}})$', 1) as bigint), episode, seed, status,
    case when isfinite(score) then score end, success, status in ({_BROKEN}), error,
    completion_tokens, len(turns), list_min([t.policy_version.oldest for t in turns]),
    list_max([t.policy_version.newest for t in turns]),
    len(turns) > 0 and len([1 for t in turns if t.action is null or t.action <> '']) = 0,
    left(regexp_replace(messages[-1].content, '\\s+', ' ', 'g'), 200), coalesce(seat, ''), null
from given
"""
_SPREAD: Final = """
update episodes set group_spread = spread from (
    select phase p, step s, group_id g, coalesce(max(score) - min(score), 0) spread from episodes
    where file in (select unnest(?)) group by all
) where phase = p and step = s and group_id = g and file in (select unnest(?))
"""
_INSERT_TEXTS: Final = """
insert into texts select file::bigint << 32 | row, file, lower(replace(concat_ws(chr(10), error, final_observation,
    array_to_string([m.content for m in messages], chr(10)),
    array_to_string([concat_ws(chr(10), t.observation, t.response, t.action) for t in turns], chr(10))), chr(10), ' '))
from given
"""


Group = tuple[str, int, str]
"""What the members of a group have in common: phase, step, id of the group."""


@dataclass(frozen=True, slots=True)
class Row:
    """One episode in the table.

    Attributes:
        id: Its number while the program runs.
        phase: ``train`` or ``val``.
        step: Training step.
        tag: Environment tag or source.
        group_id: Group.
        episode: Index within the group.
        seed: Seed of the environment.
        status: How it ended.
        score: Its score, ``None`` if never scored.
        success: Whether it was solved, or the answer right.
        broken: Whether it must not be trained on.
        error: Why.
        tokens: Sampled tokens.
        turns: Turns.
        oldest: Oldest weights that sampled it, ``None`` without turns.
        newest: Newest.
        answer: Whether it is an answer that is graded, not a game.
        prompt: The beginning of the last message before its first turn.
        seat: Its seat in a game with several; else empty.
    """

    id: int
    phase: str
    step: int
    tag: str
    group_id: str
    episode: int
    seed: int
    status: str
    score: float | None
    success: bool
    broken: bool
    error: str | None
    tokens: int
    turns: int
    oldest: int | None
    newest: int | None
    answer: bool
    prompt: str | None
    seat: str

    @property
    def verdict(self) -> str:
        """``good``, ``bad`` (it broke) or ``mid`` (not solved): never the sign of a reward, which a format may earn."""
        return "bad" if self.broken else "good" if self.success else "mid"

    @property
    def outcome(self) -> str:
        """The same in words."""
        words = ("right", "wrong") if self.answer else ("solved", "not solved")
        return "error" if self.broken else words[not self.success]


COLUMNS: Final = (
    *("phase", "step", "tag", "group_id", "episode", "seed", "status", "score", "success", "error", "tokens", "turns"),
    *("oldest", "newest", "group_spread", "seat"),
)
"""What an SQL condition can speak of; see :class:`Row`. ``group_spread``: highest less lowest score of the group."""

_ROW: Final = ", ".join(Row.__dataclass_fields__)


class Episodes:
    """The table. Methods may be called from any thread.

    Args:
        run: Whose episodes.
        threads: How many threads may work at a query.
    """

    def __init__(self, run: RunFolder, threads: int = 4) -> None:
        self.run = run
        self.version = 0
        """Grows whenever there are other episodes than before."""
        self.pending = 0
        """Files that are still to be read."""
        self.unreadable: dict[Path, str] = {}
        """Files that are no files of episodes, and why."""
        # Conditions are a person's own SQL: they see the table, and no files.
        walls = {"enable_external_access": "false", "python_enable_replacements": "false"}
        self._base = duckdb.connect(":memory:", config={"threads": threads, **walls})
        self._base.execute(_TABLES)
        self._base.execute(f"create view conditions as select id, {', '.join(COLUMNS)} from episodes")
        self._lock = threading.RLock()
        self._files: dict[Path, FileStamp] = {}
        self._numbers: dict[Path, int] = {}
        self._paths: list[Path] = []
        self._searchable: set[int] = set()
        self._reader = TrajectoryReader()
        self._closed = False

    def close(self) -> None:
        """Forget everything; what is being read elsewhere is finished first, and nothing is read any more."""
        with self._lock:
            self._closed = True
            self._base.close()

    @contextmanager
    def steady(self, chosen: Filter) -> Iterator[None]:
        """Let nothing be read meanwhile: all that a page shows is of one moment, and it waits only once.

        Args:
            chosen: What the page is about. If it searches in texts, those are read first.
        """
        if chosen.text:
            self.make_searchable()
        with self._lock:
            yield

    def refresh(self, within: float = math.inf) -> int:
        """Read what was written since the last call, the newest first; returns :attr:`version`.

        Args:
            within: Seconds after which the rest is left for the next call, but for the first few files;
                :attr:`pending` says how many are left.
        """
        begun = time.monotonic()
        with self._lock:
            if self._closed:
                return self.version
            found = self.run.files()
            changed = [path for path, stamp in found.items() if self._files.get(path) != stamp]
            gone = [path for path in self._files if path not in found]
            changed.sort(key=lambda path: found[path].time, reverse=True)
            self._forget([*changed, *gone])
            self.pending = len(changed)
            while self.pending and (self.pending == len(changed) or time.monotonic() - begun < within):
                part = changed[-self.pending :][:_AT_A_TIME]
                self._read(part)
                self._files |= {path: found[path] for path in part}
                self.pending -= len(part)
            if changed or gone:
                self.version += 1
            return self.version

    def query(self, sql: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query on ``episodes``."""
        with self._lock:
            return self._base.execute(sql, values or []).fetchall()

    def select(self, chosen: Filter) -> list[Row]:
        """Return one page of the episodes that ``chosen`` chooses."""
        return self.first(chosen, PAGE, (chosen.page_number - 1) * PAGE)

    def first(self, chosen: Filter, most: int, start: int = 0) -> list[Row]:
        """Return at most ``most`` of the episodes that ``chosen`` chooses, without the first ``start``."""
        where, values = self._where(chosen)
        sql = f"select {_ROW} from episodes where {where} order by {chosen.order()} limit {most} offset {start}"
        return [Row(*found) for found in self.query(sql, values)]

    def matching(self, condition: str) -> list[Row]:
        """Return the episodes of which an SQL condition on :data:`COLUMNS` is true, in the order in which they came.

        Raises:
            ConfigError: It cannot be understood; names the nearest column.
        """
        with self._lock:
            try:
                found = self._base.view("conditions").filter(condition).project("id").fetchall()
            except duckdb.Error as error:
                raise ConfigError([_misunderstood(condition, str(error))]) from error
        sql = (
            f"select {_ROW} from episodes where id in (select unnest(?)) order by step, phase, natural_group, group_id"
        )
        return [Row(*each) for each in self.query(f"{sql}, episode", [[id for (id,) in found]])]

    def sum_up(self, chosen: Filter) -> tuple[int, float | None, float | None]:
        """Return number, mean score and share solved of all that ``chosen`` chooses, on whatever page."""
        where, values = self._where(chosen)
        sql = f"select count(*), avg(score), avg(success::int) from episodes where {where}"
        return self.query(sql, values)[0]

    def find(self, phase: str, step: int, group: str, episode: int) -> Row | None:
        """Return one episode."""
        sql = f"select {_ROW} from episodes where phase = ? and step = ? and group_id = ? and episode = ?"
        found = self.query(sql, [phase, step, group, episode])
        return Row(*found[0]) if found else None

    def find_all(self, phase: str, step: int, places: Sequence[tuple[str, int]]) -> list[Row]:
        """Return the episodes of a step at places, group and episode, in their order; some may not be there."""
        sql = f"select {_ROW} from episodes where phase = ? and step = ? and group_id in (select unnest(?))"
        rows = [Row(*found) for found in self.query(sql, [phase, step, [group for group, _ in places]])]
        by_place = {(row.group_id, row.episode): row for row in rows}
        return [by_place[place] for place in places if place in by_place]

    def members(self, phase: str, step: int, group: str) -> list[Row]:
        """Return the members of a group."""
        return self.members_of([(phase, step, group)])[phase, step, group]

    def members_of(self, groups: Iterable[Group]) -> dict[Group, list[Row]]:
        """Return the members of groups."""
        found: dict[Group, list[Row]] = {group: [] for group in groups}
        sql = f"select {_ROW} from episodes where phase = ? and step = ? and group_id in (select unnest(?))"
        for phase, step in dict.fromkeys((phase, step) for phase, step, _ in found):
            ids = [group for *of, group in found if of == [phase, step]]
            for row in self.query(f"{sql} order by group_id, episode", [phase, step, ids]):
                member = Row(*row)
                found[phase, step, member.group_id].append(member)
        return found

    def neighbours(self, row: Row, chosen: Filter) -> tuple[Row | None, Row | None, int, int]:
        """Return the episodes before and after ``row`` in the table, its place from 1 (0: not in it) and how many."""
        where, values = self._where(chosen.without_page())
        ordered = f"select id, row_number() over (order by {chosen.order()}) n from episodes where {where}"
        sql = f"""
            with ordered as ({ordered}), here as (select n from ordered where id = ?)
            select o.id, o.n, h.n, (select count(*) from ordered)
            from ordered o, here h where o.n between h.n - 1 and h.n + 1
        """
        found = self.query(sql, [*values, row.id])
        beside = {number - place: self._by_id(id) for id, number, place, _ in found if number != place}
        place, total = (found[0][2], found[0][3]) if found else (0, 0)
        return beside.get(-1), beside.get(1), place, total

    def read(self, row: Row) -> tuple[Trajectory, dict[int, str]]:
        """Return everything of an episode, and the texts of its tokens where they were kept."""
        return self._reader.read(self._paths[row.id >> 32], row.id & 0xFFFFFFFF)

    def read_all(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Trajectory]]:
        """Yield ``rows`` with everything of their episodes; those of one file should follow one another."""
        for number, of_file in groupby(rows, lambda row: row.id >> 32):
            stored = read_trajectories(self._paths[number])
            for row in of_file:
                yield row, stored[row.id & 0xFFFFFFFF]

    def learned(self, row: Row) -> dict[int, Learned]:
        """Return what the learner made of an episode: turn, from 0, → its tokens; empty where that was not kept."""
        if row.phase != "train":
            return {}
        _, alone = self.alone(row)
        return read_learned(learned_path(self._paths[row.id >> 32]), alone.group_id, row.episode)

    def alone(self, row: Row) -> tuple[Path, Row]:
        """Return the folder of the run that played an episode, and the episode as that knows it: without its stage."""
        stage = self.run.stage_of(self._paths[row.id >> 32])
        if not stage:
            return self.run.home, row
        names = {name: getattr(row, name).removeprefix(f"{stage}{OF_STAGE}") for name in _NAMED}
        return self.run.home / stage, replace(row, **names)

    def differing(self) -> set[int]:
        """Return the numbers of all episodes in groups whose scores differ."""
        return {number for (number,) in self.query("select id from episodes where group_spread > 0")}

    def choices(self) -> dict[str, list[str]]:
        """Return what there is to choose from: phases, tags, statuses, seats."""
        sql = "select distinct {} from episodes order by 1"
        names = ("phase", "tag", "status", "seat")
        return {name: [str(found) for (found,) in self.query(sql.format(name))] for name in names}

    def label(self, labels: list[tuple[Row, str]]) -> None:
        """Say which episodes have which labels, instead of what was said before."""
        with self._lock:
            self._base.execute("delete from labelled")
            if labels:
                self._base.executemany("insert into labelled values (?, ?)", [(row.id, text) for row, text in labels])

    def make_searchable(self) -> None:
        """Read the text of every episode that has not been read; takes a second per million turns, and is kept."""
        while True:
            with self._lock:  # not for the whole time: others look at pages meanwhile
                part = [number for number in self._numbers.values() if number not in self._searchable][:_AT_A_TIME]
                if not part:
                    return
                given = [(number, self._load(self._paths[number], _TEXTS)) for number in part]
                self._insert(_INSERT_TEXTS, [(number, table) for number, table in given if table is not None])
                self._searchable.update(part)

    def _where(self, chosen: Filter) -> tuple[str, list[Any]]:
        if chosen.text:
            self.make_searchable()
        return chosen.where()

    def _by_id(self, id: int) -> Row:
        return Row(*self.query(f"select {_ROW} from episodes where id = ?", [id])[0])

    def _forget(self, paths: list[Path]) -> None:
        """Drop the rows of files that are there no more, or are other files now."""
        numbers = [self._numbers.pop(path) for path in paths if path in self._numbers]
        for table in ("episodes", "texts"):
            self._base.execute(f"delete from {table} where file in (select unnest(?))", [numbers])
        for path in paths:
            self._files.pop(path, None)
            self.unreadable.pop(path, None)

    def _read(self, paths: list[Path]) -> None:
        """Take in files."""
        given = []
        for path in paths:
            table = self._load(path, _NUMBERS)
            if table is not None:
                self._numbers[path] = len(self._paths)
                given.append((len(self._paths), table))
                self._paths.append(path)
        self._insert(_INSERT, given)
        numbers = [number for number, _ in given]
        self._base.execute(_SPREAD, [numbers, numbers])

    def _insert(self, sql: str, given: list[tuple[int, pa.Table]]) -> None:
        if given:
            self._base.register("given", pa.concat_tables(list(_numbered(given))))
            self._base.execute(sql)
            self._base.unregister("given")

    def _load(self, path: Path, columns: list[str]) -> pa.Table | None:
        """Return columns of a file, ``None`` where it is none of ours, which is said once."""
        try:
            with open_trajectories(path) as file:
                table = file.read(columns=columns).replace_schema_metadata()
            if _SEAT in columns and _SEAT not in table.schema.names:  # files of earlier releases have no such column
                table = table.append_column(_SEAT, pa.nulls(table.num_rows, pa.string()))
            stage = self.run.stage_of(path)
            return _of_stage(table, stage) if stage and {*_NAMED} <= {*columns} else table
        except (OSError, ValueError, pa.ArrowException) as error:
            self.unreadable[path] = str(error)
            return None


def _of_stage(table: pa.Table, stage: str) -> pa.Table:
    """Return the rows with names that no other stage has: two may have a level of the same number in the same step."""
    for name in _NAMED:
        index = table.schema.get_field_index(name)
        named = [f"{stage}{OF_STAGE}{value}" for value in table[name].to_pylist()]
        table = table.set_column(index, name, pa.array(named, pa.string()))
    return table


def _numbered(given: list[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    """Yield the tables with the number of their file and of each row."""
    for number, table in given:
        rows = table.num_rows
        table = table.append_column("file", pa.array(np.full(rows, number, np.int32)))
        yield table.append_column("row", pa.array(np.arange(rows, dtype=np.int32)))


def _misunderstood(condition: str, message: str) -> Problem:
    """Say what is wrong with a condition."""
    unknown = re.search(r'Referenced column "(.*?)" not found', message)
    if unknown is not None:
        name = unknown.group(1)
        fix = f"{choose_from(name, COLUMNS)} Text is written in single quotes."
        return Problem("--where", f"episodes have no column {name!r}.", fix, condition)
    what = message.partition("\n\n")[0].replace("\n", " ")
    fix = "write one SQL condition, such as \"score >= 1 and tag = 'SimpleSokoban'\"."
    return Problem("--where", f"{what.rstrip('.!?')}.", fix, condition)
