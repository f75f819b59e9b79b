"""Calls in threads, which a caller can give up: one at a time, and in a pool."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roll.common.threads import CallThreads, run_in_thread

Way = Callable[[Callable[[], Any]], Awaitable[Any]]


async def in_a_pool(function: Callable[[], Any]) -> Any:
    threads = CallThreads(1)
    try:
        result, _ = await threads.call(function)
        return result
    finally:
        threads.close()


WAYS = pytest.mark.parametrize("way", [run_in_thread, in_a_pool])


@WAYS
def test_the_result_comes_back_from_another_thread(way: Way) -> None:
    async def run() -> Any:
        return await way(threading.get_ident)

    assert asyncio.run(run()) != threading.get_ident()


@WAYS
@pytest.mark.parametrize("error", [KeyError("x"), OSError("y")])
def test_what_a_call_raises_is_raised(way: Way, error: Exception) -> None:
    def fail() -> None:
        raise error

    async def run() -> None:
        await way(fail)

    with pytest.raises(type(error)) as caught:
        asyncio.run(run())
    assert caught.value is error


@WAYS
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit, asyncio.CancelledError])
def test_what_would_steer_the_loop_arrives_as_an_error(way: Way, kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind("bye")

    async def run() -> None:
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: bye") as caught:
            await way(leave)
        assert isinstance(caught.value.__cause__, kind)

    asyncio.run(run())


@WAYS
def test_a_caller_that_is_cancelled_waits_no_longer(way: Way) -> None:
    started, release = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(60)

    async def run() -> None:
        task = asyncio.ensure_future(way(hang))
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()  # its result has nobody to go to
        await asyncio.sleep(0.01)

    asyncio.run(run())


@WAYS
def test_a_result_that_comes_after_the_loop_is_forgotten(way: Way) -> None:
    started, release, ended = (threading.Event() for _ in range(3))

    def late() -> None:
        started.set()
        release.wait(60)
        ended.set()

    async def run() -> None:
        task = asyncio.ensure_future(way(late))
        while not started.is_set():  # what has not begun when it is given up never does
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.01)

    before = threading.excepthook
    failures: list[Any] = []
    threading.excepthook = failures.append
    try:
        asyncio.run(run())
        release.set()
        assert ended.wait(60)
    finally:
        threading.excepthook = before
    assert failures == []


def test_a_call_of_its_own_thread_sees_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    async def run() -> int:
        variable.set(7)
        return await run_in_thread(variable.get)

    assert asyncio.run(run()) == 7


@pytest.mark.processes
def test_the_process_ends_although_a_call_hangs() -> None:
    code = (
        "import asyncio, time\n"
        "from roll.common.threads import run_in_thread\n"
        "async def main():\n"
        "    try:\n        await asyncio.wait_for(run_in_thread(lambda: time.sleep(60)), 0.05)\n"
        "    except TimeoutError:\n        print('gave up')\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "gave up\n"
