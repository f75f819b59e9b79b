"""Calls that travel together: the worker's end in this process, the caller's end against a fake actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("ray")

from roll.distributed import ray_post  # noqa: E402
from roll.distributed.ray_post import Answer, Letter, Mailroom, Post, SilentWorkerError  # noqa: E402
from roll.distributed.transport import Packed, pack, unpack  # noqa: E402


async def run(method: str, args: Packed) -> Answer:
    """Do what the method's name says."""
    if method == "linger":
        await asyncio.sleep(60)
    if method == "soon":
        await asyncio.sleep(0.05)
    if method == "cancelled":
        raise asyncio.CancelledError
    return unpack(args)[0]


def letters(*methods: str) -> list[Letter]:
    return [Letter(number, method, pack((number,))) for number, method in enumerate(methods)]


class FakeActor:
    """**Not an actor**: the worker's end in the same event loop, with Ray's way of calling; counts and delays trips."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.room = Mailroom(run)
        self.trips: list[tuple[str, int]] = []
        self.silent = False
        self._seconds = seconds
        self._name = ""

    @property
    def deliver(self) -> FakeActor:
        return self

    def options(self, name: str) -> FakeActor:
        self._name = name
        return self

    def remote(self, caller: str, letters: Sequence[Letter], cancelled: Sequence[int]) -> Awaitable[None]:
        self.trips.append((self._name, len(letters)))

        async def arrive() -> None:
            await asyncio.sleep(self._seconds)
            self.room.deliver(caller, letters, cancelled)

        return asyncio.ensure_future(arrive())

    @property
    def collect(self) -> FakeCollect:
        return FakeCollect(self)


class FakeCollect:
    """The other method of a :class:`FakeActor`."""

    def __init__(self, actor: FakeActor) -> None:
        self._actor = actor

    def remote(self, caller: str) -> Awaitable[list[tuple[int, Answer]]]:
        if self._actor.silent:
            return asyncio.ensure_future(asyncio.sleep(60, []))
        return asyncio.ensure_future(self._actor.room.collect(caller))


def running() -> bool:
    """Return whether the worker does anything."""
    return any(task.get_coro().__name__ == "run" for task in asyncio.all_tasks())  # type: ignore[union-attr]


def in_time(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 100))  # type: ignore[arg-type]


def test_answers_wait_for_their_caller_and_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_post, "POLL_SECONDS", 0.05)

    async def play() -> None:
        room = Mailroom(run)
        room.deliver("a", letters("answer", "answer"), [])
        room.deliver("b", letters("answer"), [])
        assert sorted(await room.collect("a")) == [(0, 0), (1, 1)]
        assert await room.collect("a") == []
        assert await room.collect("b") == [(0, 0)]

    in_time(play)


def test_answers_that_finish_soon_after_each_other_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_post, "GATHER_SECONDS", 0.3)

    async def play() -> None:
        room = Mailroom(run)
        room.deliver("a", letters("answer", "soon", "linger"), [])
        assert sorted(await room.collect("a")) == [(0, 0), (1, 1)]
        room.close()

    in_time(play)


def test_a_worker_that_closes_tells_those_who_wait_even_if_their_call_has_not_begun() -> None:
    async def play() -> None:
        room = Mailroom(run)
        room.deliver("a", letters("linger"), [])
        asked = asyncio.create_task(room.collect("a"))
        await asyncio.sleep(0.01)
        # Delivered and cancelled before the event loop comes to it.
        room.deliver("a", [Letter(7, "answer", pack((7,)))], [])
        room.close()
        assert sorted(await asked) == [(0, None), (7, None)]

    in_time(play)


def test_a_cancelled_call_ends_and_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_post, "POLL_SECONDS", 0.1)

    async def play() -> None:
        room = Mailroom(run)
        room.deliver("a", letters("linger", "soon"), [])
        room.deliver("a", [], [0])
        assert await room.collect("a") == [(1, 1)]
        assert await room.collect("a") == []
        assert not running()

    in_time(play)


def test_many_calls_share_few_trips_and_every_one_is_answered() -> None:
    async def play() -> None:
        actor = FakeActor()
        post = Post(actor, "worker-0", 5)
        assert await asyncio.gather(*(post.call("answer", pack((i,))) for i in range(100))) == list(range(100))
        assert sum(count for _, count in actor.trips) == 100
        assert len(actor.trips) <= 100 / ray_post.MOST_LETTERS + 2
        assert {name for name, _ in actor.trips} == {"worker-0.answer"}

    in_time(play)


def test_a_call_that_is_given_up_before_its_trip_never_begins_and_after_it_is_cancelled() -> None:
    async def play() -> None:
        actor = FakeActor(seconds=0.5)  # the trip is still under way when the third call comes
        post = Post(actor, "worker-0", 5)
        first = asyncio.create_task(post.call("soon", pack((1,))))
        sent = asyncio.create_task(post.call("linger", pack((2,))))
        await asyncio.sleep(0.005)
        unsent = asyncio.create_task(post.call("linger", pack((3,))))
        await asyncio.sleep(0)
        for task in (sent, unsent):
            task.cancel()
        assert await first == 1
        while any(task.get_coro().__name__ == "run" for task in asyncio.all_tasks()):  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        assert sum(count for _, count in actor.trips) == 2
        assert await post.call("answer", pack((4,))) == 4

    in_time(play)


def test_calls_given_up_when_nothing_is_under_way_are_cancelled_in_one_trip() -> None:
    async def play() -> None:
        actor = FakeActor()
        post = Post(actor, "worker-0", 5)
        calls = [asyncio.create_task(post.call("linger", pack((i,)))) for i in range(10)]
        await asyncio.sleep(0.1)
        before = len(actor.trips)
        for call in calls:
            call.cancel()
        await asyncio.sleep(0.1)
        assert actor.trips[before:] == [("worker-0.cancel", 0)]
        assert not running()

    in_time(play)


def test_a_worker_that_says_nothing_fails_all_calls_and_closes_the_post(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_post, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(ray_post, "SLACK_SECONDS", 0.05)

    async def play() -> None:
        actor = FakeActor()
        actor.silent = True
        post = Post(actor, "worker-0", 0.1)
        calls: list[Any] = [post.call("answer", pack((i,))) for i in range(3)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {SilentWorkerError}
        assert post.closed

    in_time(play)
