"""Where a pool places requests, against a plain look at all replicas; what placing costs with very many of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_fakes import FakeReplica

from roll.generation import GenerationRequest, SamplingParams
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.replicas import Replica, ReplicaPool
from roll.schedulers.waiting_line import Waiter, WaitingLine
from tests.lines import lines_run

LIMIT = 3
SAMPLING = SamplingParams(max_new_tokens=1)


def least_loaded(pool: ReplicaPool, avoid: Replica | None) -> Replica | None:
    """Return the replica that a look at all of them finds."""
    free = [replica for replica in pool.replicas if replica.has_room and replica is not avoid]
    return min(free, key=lambda replica: replica.load, default=None)


@pytest.mark.exhaustive
@given(data=st.data(), replicas=st.integers(1, 5))
def test_a_new_trajectory_goes_to_the_least_loaded_replica(data: st.DataObject, replicas: int) -> None:
    pool = ReplicaPool([object()] * replicas, LIMIT)  # type: ignore[list-item]
    held: list[tuple[Replica, str | None]] = []

    async def down(rank: int) -> None:
        pool.mark_down(pool.replicas[rank])

    for number in range(data.draw(st.integers(0, 60))):
        step = data.draw(st.sampled_from(["take", "take", "take", "give back", "forget", "slow", "down", "new"]))
        rank = data.draw(st.integers(0, replicas - 1))
        if step == "take":
            session = data.draw(st.sampled_from([None, f"s{number}"]))
            expected = least_loaded(pool, None)
            taken = pool.take(session)
            assert taken is expected
            if taken is not None:
                held.append((taken, session))
        elif step == "give back" and held:
            replica, _ = held.pop(data.draw(st.integers(0, len(held) - 1)))
            replica.timeouts = data.draw(st.integers(0, 1))
            pool.give_back(replica)
        elif step == "forget" and held:
            session = held[-1][1]
            if session is not None:
                pool.forget(session)
        elif step == "down":
            asyncio.run(down(rank))
        elif step == "new":
            asyncio.run(replaced(pool, rank))
    if all(replica.up for replica in pool.replicas):
        assert pool.running == len(held)
    avoided = pool.replicas[0]
    others = [replica for replica in pool.replicas if replica.up and replica is not avoided]
    if others:  # what failed at one goes to the least loaded of the others, where that has room
        expected = min(others, key=lambda replica: replica.load)
        if expected.has_room:
            assert pool.take(None, avoided) is expected


async def replaced(pool: ReplicaPool, rank: int) -> None:
    pool.replace(rank, object())  # type: ignore[arg-type]


def test_what_placing_costs_does_not_grow_with_the_number_of_engines() -> None:
    """Counted in lines of Python that run, which are the same on every machine."""

    def cost(replicas: int) -> int:
        pool = ReplicaPool([object()] * replicas, 8)  # type: ignore[list-item]
        held = [pool.take(f"s{number}") for number in range(4 * replicas)]
        with lines_run() as lines:
            for number in range(200):
                replica = held[number % len(held)]
                assert replica is not None
                pool.give_back(replica)
                held[number % len(held)] = pool.take(f"n{number}")
                assert pool.running == 4 * replicas
        return lines.counted

    assert cost(2048) < 3 * cost(8)


@pytest.mark.parametrize(("replicas", "parts", "each"), [(64, 16, 4), (64, 64, 5), (12, 5, 7), (8, 2, 3), (3, 9, 2)])
def test_schedulers_that_share_engines_begin_with_different_ones(replicas: int, parts: int, each: int) -> None:
    engines = [FakeReplica(lambda request: 0.2) for _ in range(replicas)]
    schedulers = [GenerationScheduler(engines, part=(number, parts)) for number in range(parts)]

    async def play() -> None:
        requests = (GenerationRequest(f"{n}", [0], SAMPLING, n, f"{n}") for n in range(parts * each))
        await asyncio.gather(*(schedulers[n % parts].generate(request) for n, request in enumerate(requests)))

    asyncio.run(play())
    counts = [len(engine.seen) for engine in engines]
    assert max(counts) - min(counts) <= 1 + (parts * each) // replicas // 2


def test_an_engine_that_is_made_again_keeps_its_turn_among_equals() -> None:
    pool = ReplicaPool([object()] * 4, LIMIT, first=2)  # type: ignore[list-item]
    asyncio.run(replaced(pool, 2))
    taken = [pool.take(f"s{number}") for number in range(4)]
    assert [replica.rank for replica in taken if replica] == [2, 3, 0, 1]


def test_an_engine_that_is_made_again_gets_who_waits_also_where_a_freer_one_failed_it() -> None:
    async def play() -> None:
        pool = ReplicaPool([object()] * 3, 1)  # type: ignore[list-item]
        taken = [pool.take(None) for _ in range(3)]
        pool.mark_down(pool.replicas[2])
        waiting = asyncio.ensure_future(pool.wait(None, 0, pool.replicas[0]))
        await asyncio.sleep(0)
        assert taken[0] is pool.replicas[0]
        pool.give_back(pool.replicas[0])
        await asyncio.sleep(0)
        assert not waiting.done(), "the one that is free failed it"
        pool.replace(2, object())  # type: ignore[arg-type]
        assert (await waiting).rank == 2

    asyncio.run(play())


@pytest.mark.exhaustive
@given(data=st.data())
def test_who_waits_longest_is_found_wherever_it_belongs(data: st.DataObject) -> None:
    async def play() -> None:
        line = WaitingLine()
        waiting: dict[Waiter, str | None] = {}
        for number in range(data.draw(st.integers(0, 120))):
            step = data.draw(st.sampled_from(["add", "add", "next", "leave"]))
            if step == "add":
                place: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                avoid = data.draw(st.sampled_from([None, None, "a", "b"]))
                waiter = Waiter(data.draw(st.integers(0, 3)), number, None, place, avoid)
                home = data.draw(st.sampled_from([None, "a", "b", "c"]))
                line.add(waiter, home)
                waiting[waiter] = home
            elif step == "leave" and waiting:
                waiter = data.draw(st.sampled_from(list(waiting)))
                line.leave(waiter)
                del waiting[waiter]
            elif step == "next":
                replica = data.draw(st.sampled_from(["a", "b", "c"]))
                alone = data.draw(st.booleans())
                own = [each for each, home in waiting.items() if home in (None, replica)]
                others = [each for each in waiting if alone or each.avoid != replica]
                expected = min(own or others, key=lambda each: (each.priority, each.age), default=None)
                assert line.next(replica, alone) is expected
                waiting.pop(expected, None)  # type: ignore[arg-type]
            assert len(line) == len(waiting)

    asyncio.run(play())
