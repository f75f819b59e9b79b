"""A call that takes far longer than it ever did is spoken of once, in words that say who, what and since when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from roll.config import AgenticConfig
from roll.distributed import LocalGroup, WorkerSpec, plan_placement
from roll.distributed.call_watch import CallWatch


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def call_of(watch: CallWatch, clock: Clock, seconds: float) -> list[str]:
    """Return what is said while a call is under way for so many seconds, looked at every second."""
    said = []
    with watch.call("actor_train", ["rank 1 (pid 4, node 10.0.0.1)"], "train_step"):
        for _ in range(int(seconds)):
            clock.now += 1
            said += watch.late()
    return said


def test_a_first_call_may_take_ten_minutes(clock: Clock) -> None:
    watch = CallWatch(clock)
    assert not call_of(watch, clock, 600)
    (words,) = call_of(CallWatch(clock), clock, 1200)
    assert "actor_train rank 1 (pid 4, node 10.0.0.1): train_step has been under way for 601 s; no earlier one" in words


def test_a_later_one_five_times_as_long_as_the_longest_and_a_minute(clock: Clock) -> None:
    watch = CallWatch(clock)
    assert not call_of(watch, clock, 2) and not call_of(watch, clock, 60)
    assert not call_of(watch, clock, 300)
    (words,) = call_of(watch, clock, 1501)
    assert "has been under way for 1501 s; the longest one before took 300.0 s" in words
    assert len(call_of(watch, clock, 9000)) == 1


def test_the_calls_of_workers_are_watched_and_told_of_from_a_thread() -> None:
    class Sleeper:
        async def rest(self) -> str:
            heard.wait(10)  # holds the event loop up, as a worker in this process does
            return "rested"

    heard, said, clock = threading.Event(), list[str](), Clock()
    watch = CallWatch(clock, look_every=0.01)
    plan = plan_placement(AgenticConfig()).roles["actor_train"]
    group = LocalGroup(plan, WorkerSpec(cls=Sleeper), rpc_timeout=60, watch=watch)

    def tell(words: str) -> None:
        said.append(words)
        heard.set()

    async def run() -> None:
        threading.Timer(0.05, lambda: setattr(clock, "now", 700.0)).start()
        await group.all("rest")

    with watch.telling(tell):
        asyncio.run(run())
    (words,) = said
    assert words.startswith("actor_train rank 0 (this process): rest has been under way for 700 s")
