"""Explorers and trainers are killed at random moments, in processes of their own, and no group is lost or doubled.

Which are killed, in which order and when is drawn anew in each run (the fixture ``draw``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from experience_support import make_group
from killed_programs import PER_CALL, READERS, decision_of, number_of, opened, waits
from postgres import Server, needs_postgres
from ray_session import Session

from roll.experience.base import Reader, StoreCounts
from roll.experience.errors import ReviewError
from roll.experience.folder import FolderStore
from roll.experience.memory import MemoryStore
from tests import programs as warm

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("killed_programs.py")


class Program:
    """One that is started again whenever it was killed, until it says that it is done."""

    def __init__(self, what: str, folder: Path, name: str, *options: object, store: str = "") -> None:
        store = store or str(folder / "store")
        self._checkpoint = folder / f"{name}.json"
        self._words = [str(PROGRAM), what, store, str(self._checkpoint), *map(str, options)]
        self._said_in = folder / f"{name}.txt"
        self._process: warm.WarmProgram | None = None
        self.kills = 0

    def start(self) -> None:
        with self._said_in.open("ab") as said, open(os.devnull) as nothing:
            environment = {"PYTHONPATH": f"{PROGRAM.parent}:{PROGRAM.parents[2]}"}
            of_ray = ("HOME", "RAY_ADDRESS", "RAY_AUTH_MODE")
            environment |= {name: os.environ[name] for name in of_ray if name in os.environ}
            streams = [nothing.fileno(), said.fileno(), 2]
            self._process = warm.start("store", self._words, Path.cwd(), environment, streams)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        status = self._process.wait()
        assert status in (0, -signal.SIGKILL), "it failed; what it said is above"
        self.kills += status != 0

    def finish(self) -> None:
        self.start()
        assert self._process is not None and self._process.wait(timeout=120) == 0

    def wait_for_more(self) -> None:
        """Wait until it has done something since it was started, or is done."""
        size, until = self._said_in.stat().st_size, time.monotonic() + 60
        while self._said_in.stat().st_size == size and self._process is not None and self._process.poll() is None:
            assert time.monotonic() < until, "it does nothing"
            time.sleep(0.001)

    @property
    def said(self) -> list[str]:
        """The lines that it has said so far; each was written at once."""
        return self._said_in.read_text().splitlines()

    @property
    def trained(self) -> list[int]:
        return json.loads(self._checkpoint.read_text())["trained"]


def trained_without_a_kill(last: int, reader: Reader, count: int) -> list[int]:
    """Return the numbers of the groups that a trainer is given where all of them are there from the beginning."""
    store, trained = MemoryStore(reader), []
    for call in range(last // PER_CALL):
        store.append([make_group(number) for number in range(call * PER_CALL, (call + 1) * PER_CALL)], call)
    while lease := store.lease(count, len(trained) // count + 1):
        trained += [int(group.group_id.rpartition("-")[2]) for group in lease.groups]
    return trained


def groups_of(folder: Path) -> list[int]:
    """Return the numbers of all groups in the store, in its order, after a look at the index and their content."""
    database = sqlite3.connect(folder / "store" / "index.sqlite")
    assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert database.execute("pragma foreign_key_check").fetchall() == []
    database.close()
    store = FolderStore(folder / "store", Reader("looks"))
    total = store.counts().groups
    lease = store.lease(total, 1)
    assert lease is not None
    store.rewind(0)
    store.close()
    numbers = [int(group.group_id.rpartition("-")[2]) for group in lease.groups]
    assert list(lease.groups) == [make_group(number) for number in numbers]
    return numbers


@pytest.mark.parametrize("drawn", ["first", pytest.param("second", marks=pytest.mark.exhaustive)])
def test_what_append_reported_is_there_once_however_often_two_explorers_are_killed(
    tmp_path: Path, drawn: str, draw: random.Random
) -> None:
    explorers = [Program("explore", tmp_path, f"explorer{number}", 10**6) for number in (0, 1)]
    for _ in range(3):
        for program in explorers:
            program.start()
        draw.choice(explorers).wait_for_more()
        for program in draw.sample(explorers, 2):
            time.sleep(draw.uniform(0, 0.15))
            program.kill()
        numbers = groups_of(tmp_path)
        assert numbers == list(range(len(numbers))), "two explorers of the same groups, each in order"
        assert len(numbers) % PER_CALL == 0, "all groups of a call or none"
        reported = {number for program in explorers for line in program.said for number in json.loads(line)}
        assert reported <= set(numbers)
    assert all(program.kills == 3 for program in explorers)
    store = FolderStore(tmp_path / "store")
    store.append([make_group(10**6)], 0)
    known = {store.digest(f"segments/{path.name}") for path in (tmp_path / "store" / "segments").glob("*.parquet")}
    store.close()
    assert None not in known, "a segment that no index knows was swept away"
    assert not [path for path in (tmp_path / "store" / "segments").iterdir() if path.suffix != ".parquet"]


@pytest.mark.exhaustive
def test_trainers_train_every_group_as_often_as_they_are_to_while_all_programs_are_killed(
    tmp_path: Path, draw: random.Random
) -> None:
    last = 180
    explorer = Program("explore", tmp_path, "explorer", last)
    once = Program("train", tmp_path, "once", "once", 4)
    programs = [explorer, once]
    for _ in range(3):
        for program in programs:
            program.start()
        draw.choice(programs).wait_for_more()
        for program in draw.sample(programs, 2):
            time.sleep(draw.uniform(0, 0.1))
            program.kill()
    explorer.finish()
    twice = Program("train", tmp_path, "twice", "twice", 5)
    mixed = Program("train", tmp_path, "mixed", "mixed", 5)
    for program in draw.sample([twice, mixed] * 2, 4):
        program.start()
        program.wait_for_more()
        time.sleep(draw.uniform(0, 0.1))
        program.kill()
    mixed.finish()
    once.finish()
    twice.finish()
    assert groups_of(tmp_path) == list(range(last))
    assert once.trained == list(range(last)), "every group once, in the order of the store"
    assert Counter(twice.trained) == dict.fromkeys(range(last), 2)
    assert twice.trained == [*range(last), *range(last)]
    assert mixed.trained == trained_without_a_kill(last, READERS["mixed"], 5) and len(mixed.trained) > last
    assert once.kills >= 2 and explorer.kills >= 2 and twice.kills >= 1
    counts = FolderStore(tmp_path / "store", Reader("twice", 2)).counts()
    assert (counts.groups, counts.available, counts.leased, counts.trained) == (last, 0, 0, 2 * last)


@pytest.mark.exhaustive
def test_many_programs_open_an_empty_store_at_once(tmp_path: Path) -> None:
    explorers = [Program("explore", tmp_path, f"explorer{number}", 30) for number in range(2)]
    trainer = Program("train", tmp_path, "trainer", "once", 5)
    for program in (*explorers, trainer):
        program.start()
    for program in (*explorers, trainer):
        assert program._process is not None and program._process.wait(timeout=120) == 0
    assert sorted(trainer.trained) == list(range(30)) == sorted(groups_of(tmp_path))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "times"),
    [("folder", 1), ("folder", 4), ("sqlite", 4)],
)
def test_a_decision_holds_exactly_once_whatever_is_killed_between_it_and_training(
    kind: str, times: int, tmp_path: Path, draw: random.Random
) -> None:
    last = 180
    store = f"sqlite:///{tmp_path / 'store.sqlite'}" if kind == "sqlite" else str(tmp_path / "store")
    explorer = Program("explore", tmp_path, "explorer", last, "reviewed", store=store)
    person = Program("decide", tmp_path, "person", "reviewed", store=store)
    trainer = Program("train", tmp_path, "trainer", "once", 4, "reviewed", store=store)
    programs = [explorer, person, trainer]
    for _ in range(times):
        for program in programs:
            program.start()
        for program in programs:
            program.wait_for_more()
        for program in draw.sample(programs, 3):
            time.sleep(draw.uniform(0, 0.05))
            program.kill()
        looks = opened(store, Reader("looks"))
        still = {number_of(each.group_id) for each in looks.waiting()}
        looks.close()
        assert not still & {int(line) for line in person.said if line != "done"}, "what was said to be decided is"
    for program in programs:
        program.finish()
    learned = [number for number in range(last) if not waits(number) or decision_of(number).verdict == "approve"]
    assert sorted(trainer.trained) == learned, (
        "each once that was approved, or did not wait, and none that was rejected"
    )
    assert trainer.kills
    looks = opened(store, Reader("once"))
    assert looks.counts() == StoreCounts(last, 0, 0, 0, len(learned), 0, waiting=0, rejected=last - len(learned))
    for number in (0, 3, 6):
        with pytest.raises(ReviewError, match="given out") if number else nullcontext():
            looks.decide(make_group(number).group_id, decision_of(number))
    looks.close()


@pytest.mark.exhaustive
@needs_postgres
def test_a_store_in_postgresql_loses_and_doubles_nothing_while_programs_and_server_are_killed(
    tmp_path: Path, server: Server, draw: random.Random
) -> None:
    last, store = 120, server.new_database()
    explorers = [Program("explore", tmp_path, f"explorer{number}", last, store=store) for number in (0, 1)]
    trainers = [
        Program("train", tmp_path, name, name, count, store=store)
        for name, count in (("once", 4), ("twice", 5), ("mixed", 5))
    ]
    programs = [*explorers, *trainers]
    for number in range(6):
        for program in programs:
            program.start()
        draw.choice(programs).wait_for_more()
        time.sleep(draw.uniform(0, 0.3))
        if number % 2:
            server.kill()  # programs that work wait until it is back
            time.sleep(draw.uniform(0, 0.3))
            server.start()
            time.sleep(draw.uniform(0, 0.3))
        for program in draw.sample(programs, len(programs)):
            program.kill()
    for program in programs:
        program.start()
    time.sleep(0.2)
    server.kill()
    server.start()
    for program in programs:
        assert program._process is not None and program._process.wait(timeout=240) == 0
    looks = opened(store, Reader("looks"))
    lease = looks.lease(last, 1)
    looks.close()
    assert lease is not None and list(lease.groups) == [make_group(number) for number in range(last)]
    once, twice, mixed = trainers
    assert sorted(once.trained) == list(range(last)) and Counter(twice.trained) == dict.fromkeys(range(last), 2)
    assert len(mixed.trained) > last and max(Counter(mixed.trained).values()) <= READERS["mixed"].uses
    assert all(program.kills >= 2 for program in explorers)


@pytest.mark.exhaustive
@pytest.mark.parametrize("in_folder", [False, True], ids=["in the object store", "in a folder"])
def test_a_store_in_ray_loses_and_doubles_nothing_while_programs_and_its_process_are_killed(
    in_folder: bool, tmp_path: Path, session: Session, draw: random.Random
) -> None:
    last, name = 90, session.new_name()
    folder = tmp_path / "store" if in_folder else None
    store = f"ray:{name}:{folder or ''}"
    explorer = Program("explore", tmp_path, "explorer", last, store=store)
    trainers = [Program("train", tmp_path, name, name, 5, store=store) for name in ("once", "mixed")]
    programs = [*trainers, explorer]
    for _ in range(3):
        for program in programs:
            program.start()
        draw.choice(programs).wait_for_more()
        time.sleep(draw.uniform(0, 0.5))
        if folder is not None:
            session.kill(name, folder)  # programs that work wait until it is back
            time.sleep(draw.uniform(0, 0.5))
        for program in draw.sample(programs, len(programs)):
            program.kill()
    for program in programs:
        program.finish() if program is explorer else program.start()
    once, mixed = trainers
    for program in trainers:
        assert program._process is not None and program._process.wait(timeout=240) == 0
    lease = opened(store, Reader("looks")).lease(last, 1)
    assert lease is not None and list(lease.groups) == [make_group(number) for number in range(last)]
    assert once.trained == list(range(last)), "every group once, in the order of the store"
    assert len(mixed.trained) > last and max(Counter(mixed.trained).values()) <= READERS["mixed"].uses
    assert all(program.kills >= 1 for program in programs)
