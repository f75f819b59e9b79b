"""Threads for calls of other people's code, where one that hangs costs its own thread and nothing else.

``concurrent.futures`` does not fit: a hung call keeps one of its workers for good, and the interpreter waits for it at
exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

MANY_THREADS = 256
SWITCH_INTERVAL = 0.05
"""Seconds after which a thread asks a running one for the interpreter, where there are more than ``MANY_THREADS``.

By default each asks after 5 ms and again. When thousands wake at the same time that alone takes both cores: 4,096
threads that waited 2 s took 62 s of processor time for 3 turns, and 4 s with this.
"""

MOST_THREADS = 4096
"""Calls at a time where nothing says how many: as many as there are episodes, up to this."""


class CallTimeoutError(Exception):
    """A call ran longer than its time-out; its thread was given up."""


async def run_in_thread(function: Callable[[], T], name: str = "roll-call") -> T:
    """Run ``function`` in a thread of its own and return what it returns.

    It runs with the caller's context variables. A coroutine that is cancelled gives its thread up. A thread takes some
    50 µs to start: where calls come by the thousand, use :class:`CallThreads`.

    Raises:
        Exception: What ``function`` raised. ``SystemExit`` and its like, which would steer the loop, arrive as
            ``RuntimeError``.
    """
    job = _Job(partial(contextvars.copy_context().run, function), asyncio.get_running_loop())
    assert job.future is not None
    threading.Thread(target=lambda: job.deliver(*job.run()), name=name, daemon=True).start()
    result: T = await job.future
    return result


class _Job:
    """One call in another thread, and the future that somebody may await meanwhile."""

    __slots__ = ("function", "loop", "future", "submitted", "started", "finished", "abandoned")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None if loop is None else loop.create_future()
        self.submitted = time.monotonic()
        self.started = 0.0
        self.finished = False
        self.abandoned = False

    def run(self) -> tuple[Any, BaseException | None]:
        """Call the function; return what it returned, or what it raised."""
        try:
            return self.function(), None
        except BaseException as caught:  # user code may even call sys.exit(); the caller judges
            return None, caught

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Hand the outcome to the loop of whoever awaits it, if there is one still."""
        if self.loop is None:
            return
        try:
            self.loop.call_soon_threadsafe(self._set, result, error)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _set(self, result: Any, error: BaseException | None) -> None:
        assert self.future is not None
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
            return
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            # These steer coroutines and the interpreter; a future must not carry them.
            wrapped = RuntimeError(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.future.set_exception(error)


class CallThreads:
    """A pool of daemon threads that grows with demand up to ``max_threads``.

    A call that outlives its time-out, or whose coroutine is cancelled, is abandoned: its thread ends whenever the call
    returns (Python cannot stop it), and another thread takes its place at once. Close with :meth:`close`; hung calls do
    not delay that, nor the end of the process.
    """

    def __init__(self, max_threads: int = MOST_THREADS) -> None:
        """Start no thread yet.

        Args:
            max_threads: Calls that run at the same time, hung ones apart. A thread is started only for a call that
                would wait for one; where the system refuses another, those that are there do the work.

        Raises:
            ValueError: If ``max_threads`` is less than 1.
        """
        if max_threads < 1:
            raise ValueError(f"max_threads={max_threads}: must be at least 1")
        self._max_threads = max_threads
        self._turns = asyncio.Semaphore(max_threads)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._switch_interval: float | None = None
        self._unfinished = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """Threads at work or waiting for work; abandoned ones are not counted."""
        return self._threads

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; as many callers have one at a time as there may be threads.

        For calls that last until somebody else comes to something: whoever waits for a thread here is known to wait.
        """
        async with self._turns:
            yield

    async def call(self, function: Callable[[], T], timeout: float | None = None) -> tuple[T, float]:
        """Run ``function`` in a thread.

        Args:
            function: Takes nothing; bind arguments beforehand.
            timeout: Seconds from when it begins to run (waiting for a free thread does not count).

        Returns:
            What it returned, and the seconds it waited for a thread.

        Raises:
            CallTimeoutError: If it took longer.
            BaseException: What ``function`` raised.
        """
        loop = asyncio.get_running_loop()
        job = _Job(function, loop)
        assert job.future is not None
        timers: list[asyncio.TimerHandle] = []
        if timeout is not None:
            timers.append(loop.call_later(timeout, self._check, job, timeout, timers))
        self._submit(job)
        try:
            result = await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        finally:
            if timers:
                timers[0].cancel()
        return result, job.started - job.submitted

    def detach(self, function: Callable[[], object]) -> None:
        """Run ``function`` in a thread some time, also after :meth:`close`; nobody learns its outcome."""

        def to_its_end() -> None:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)

        if self._closed:
            threading.Thread(target=to_its_end, name="roll-call-detached", daemon=True).start()
        else:
            self._submit(_Job(to_its_end, None))

    def close(self) -> None:
        """Let the threads end once their queue is empty."""
        with self._lock:
            self._closed = True
            if self._switch_interval is not None:
                sys.setswitchinterval(self._switch_interval)
            for _ in range(self._threads):
                self._jobs.put(None)

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("CallThreads is closed: no further call can run")
            self._unfinished += 1
            if self._unfinished > self._threads < self._max_threads:
                self._start_thread()
            self._jobs.put(job)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"roll-call-{self._threads + 1}", daemon=True).start()
        except RuntimeError:  # the system's limit of threads
            if not self._threads:
                raise
            self._max_threads = self._threads
            return
        self._threads += 1
        if self._threads > MANY_THREADS and self._switch_interval is None:
            self._switch_interval = sys.getswitchinterval()
            sys.setswitchinterval(max(self._switch_interval, SWITCH_INTERVAL))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if job.abandoned:
                    self._unfinished -= 1
                    continue
                job.started = time.monotonic()
            result, error = job.run()
            with self._lock:
                job.finished = True
                if job.abandoned:
                    return
                self._unfinished -= 1
            job.deliver(result, error)

    def _check(self, job: _Job, timeout: float, timers: list[asyncio.TimerHandle]) -> None:
        assert job.loop is not None and job.future is not None
        left = timeout if not job.started else job.started + timeout - time.monotonic()
        if job.future.done() or job.finished:
            return
        if left > 0:
            timers[0] = job.loop.call_later(left, self._check, job, timeout, timers)
            return
        self._abandon(job)
        job.future.set_exception(CallTimeoutError(f"no result after {timeout:g} s"))

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            if job.finished or job.abandoned:
                return
            job.abandoned = True
            if job.started:
                # Its thread is lost: it ends when the call returns, if ever.
                self._unfinished -= 1
                self._threads -= 1
                if not self._closed and self._unfinished > self._threads:
                    self._start_thread()
