"""Threads for environment calls, where a call that hangs costs its own thread and nothing else.

``concurrent.futures`` does not fit: a hung call keeps one of its workers for good, and the interpreter waits for it at
exit.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable
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


class _Job:
    __slots__ = ("function", "loop", "future", "submitted", "started", "finished", "abandoned")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None if loop is None else loop.create_future()
        self.submitted = time.monotonic()
        self.started = 0.0
        self.finished = False
        self.abandoned = False


class EnvThreads:
    """A pool of daemon threads that grows with demand up to ``max_threads``.

    A call that outlives its time-out, or whose coroutine is cancelled, is abandoned: its thread ends whenever the call
    returns (Python cannot stop it), and another thread takes its place at once. An environment may be called from
    different threads, but never from two at the same time. Close with :meth:`close`; hung calls do not delay that, nor
    the end of the process.
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
            threading.Thread(target=to_its_end, name="roll-env-detached", daemon=True).start()
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
                raise RuntimeError("EnvThreads is closed: no further environment call can run")
            self._unfinished += 1
            if self._unfinished > self._threads < self._max_threads:
                self._start_thread()
            self._jobs.put(job)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"roll-env-{self._threads + 1}", daemon=True).start()
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
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.function()
            except BaseException as caught:  # user code may even call sys.exit(); the caller judges
                error = caught
            with self._lock:
                job.finished = True
                if job.abandoned:
                    return
                self._unfinished -= 1
            if job.loop is not None:
                try:
                    job.loop.call_soon_threadsafe(_deliver, job, result, error)
                except RuntimeError:
                    if not job.loop.is_closed():
                        raise

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


def _deliver(job: _Job, result: Any, error: BaseException | None) -> None:
    assert job.future is not None
    if job.future.done():
        return
    if error is None:
        job.future.set_result(result)
    elif isinstance(error, StopIteration | asyncio.CancelledError | KeyboardInterrupt | SystemExit):
        # These steer coroutines and the interpreter; a future must not carry them.
        wrapped = RuntimeError(f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        job.future.set_exception(wrapped)
    else:
        job.future.set_exception(error)
