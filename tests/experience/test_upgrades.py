"""A store in PostgreSQL that an earlier version filled: what it had is there, and what it lacked is made, once."""

from __future__ import annotations

import threading

import psycopg
import pytest
from experience_support import make_group
from postgres import Server, needs_postgres
from version_2 import rewritten

import roll.experience.sql as sql
from roll.experience.base import Reader, StoreCounts
from roll.experience.errors import StoreError
from roll.experience.reviewing import Decision
from roll.experience.sql import SqlStore

pytestmark = [pytest.mark.processes, needs_postgres]


@pytest.fixture
def old(server: Server) -> str:
    """A store of version 2 with six groups, of which a step has four and a checkpoint two."""
    pytest.importorskip("sqlalchemy")
    newer, older = server.new_database(), server.new_database()
    with_groups = SqlStore(newer)
    for first in range(0, 6, 2):
        with_groups.append([make_group(first), make_group(first + 1)], first)
    for step in (1, 2):
        assert with_groups.lease(2, step)
    with_groups.commit(1)
    with_groups.close()
    rewritten(newer, older)
    return older


def version_of(address: str) -> tuple[int, bool]:
    """Return the version that a store says it has, and whether groups can wait in it."""
    with psycopg.connect(address) as connection:
        (version,) = connection.execute("select version from experience_store").fetchone() or (0,)
        (reviews,) = connection.execute("select to_regclass('reviews') is not null").fetchone() or (False,)
    return version, reviews


def require_whole(address: str) -> None:
    """Check that the store has what it had, gives it out as before, and can do what is new."""
    store = SqlStore(address)
    assert store.counts() == StoreCounts(6, 2, 2, 2, 2, 0)
    for step in (1, 2, 3):
        lease = store.lease(2, step)
        assert lease is not None and list(lease.groups) == [make_group(2 * step - 2), make_group(2 * step - 1)]
    waits = make_group(7)
    waits.waits = True
    assert store.append([waits, make_group(0)], 9) == 1, "numbers go on behind those that there are"
    assert [each.group_id for each in store.waiting()] == [waits.group_id]
    store.decide(waits.group_id, Decision("approve"))
    lease = store.lease(1, 4)
    assert lease is not None and list(lease.groups) == [make_group(7)]
    store.close()


def test_a_store_of_version_2_is_brought_up_to_date_with_all_that_it_has(old: str) -> None:
    assert version_of(old) == (2, False)
    require_whole(old)
    assert version_of(old) == (sql.SCHEMA_VERSION, True)
    again = SqlStore(old, Reader("other"))
    assert again.counts().groups == 7
    again.close()


def test_of_many_that_open_it_at_once_one_brings_it_up_to_date(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, begin = list[BaseException](), threading.Barrier(6)
    slowly = ("select pg_sleep(0.3)", *sql.UPGRADES[2])
    monkeypatch.setattr(sql, "UPGRADES", {2: slowly})

    def open_it() -> None:
        try:
            begin.wait()
            SqlStore(old).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    require_whole(old)


@pytest.mark.parametrize("end", ["the program ends", "the server is killed"])
def test_an_upgrade_that_is_cut_short_leaves_the_store_as_it_was(
    old: str, server: Server, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The tables of the upgrade are made, and the version is not written yet."""
    real = sql.in_postgresql

    def make_and_end(statement: str) -> str:
        if end == "the server is killed":
            return real(statement) + "; select pg_terminate_backend(pg_backend_pid())"
        return real(statement) + "; select 1 / 0"

    with monkeypatch.context() as patch:
        patch.setattr(sql, "in_postgresql", make_and_end)
        with pytest.raises((StoreError, sql.DBAPIError)):
            SqlStore(old, patience=0.0)
    if end == "the server is killed":
        server.kill()
        server.start()
    assert version_of(old) == (2, False)
    require_whole(old)


@pytest.mark.parametrize("version", [1, 99])
def test_a_version_that_cannot_be_brought_up_to_date_is_refused_and_left_alone(old: str, version: int) -> None:
    with psycopg.connect(old) as connection:
        connection.execute("update experience_store set version = %s", [version])
    with pytest.raises(StoreError, match=rf"has version {version} of the experience store.*reads version 3"):
        SqlStore(old)
    assert version_of(old) == (version, False)
