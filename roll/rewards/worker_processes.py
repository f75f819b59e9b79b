"""A few child processes that call one grading function each, killed when they hang and replaced when they die."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

from roll.common.threads import run_in_thread
from roll.rewards.concurrency import ConcurrencyLimit, time_left, waiting
from roll.rewards.worker_main import frame

_SCRIPT: Final = Path(__file__).with_name("worker_main.py")
_START_LIMIT: Final = 120.0
"""Seconds after which a process that does not get ready is given up."""


class WorkerDiedError(RuntimeError):
    """A child process ended before it answered; ``signal`` is what killed it, or 0."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class WorkerCallError(RuntimeError):
    """The function raised; the message has the type, the text and the place."""


class _Worker:
    """One child process."""

    def __init__(self, setup: bytes) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # -P: the folder of the script must not come before the standard library on the path.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        limit = threading.Timer(_START_LIMIT, self.process.kill)
        limit.daemon = True
        limit.start()
        try:
            self.ask(setup)
        finally:
            limit.cancel()

    def ask(self, content: bytes) -> dict[str, Any]:
        """Send a frame and wait for the answer; raises :class:`WorkerDiedError`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(frame(content))
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):  # dead, or closed by another thread
            line = b""
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self.process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.end()
        detail = f": {last[0]}" if last else ""
        raise WorkerDiedError(f"the grading process ended with code {code}{detail}", max(0, -code))

    def end(self) -> None:
        """Kill the process and free its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            try:
                pipe.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                continue


class WorkerProcesses:
    """Child processes that start when they are needed and stay.

    A process makes one call at a time. It shares nothing with this one: a call that hangs, also in C code that holds
    the interpreter's lock, is killed. Processes end with :meth:`close`, with this object, or with the interpreter.
    Waiting for a process, and its start, do not count as the time of a verdict.

    Args:
        function: What is called. One of an importable module travels by name; one of a script, a notebook or another
            function by value, with what it refers to.
        processes: Most processes at a time; 0 is one per processor, 2 to 8.
        modules: Modules that a process imports before its first call.
        memory: Most bytes of address space of a process; 0 is no limit.
        is_silent: Whether log messages of the function are dropped.

    Raises:
        ValueError: The function cannot travel.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        processes: int = 0,
        *,
        modules: Sequence[str] = (),
        memory: int = 0,
        is_silent: bool = False,
    ) -> None:
        if processes < 0:
            raise ValueError(f"processes={processes}: must be at least 1, or 0 for one per processor")
        self._setup = {
            "function": _pickled(function), "files": _file_modules(function), "modules": list(modules),
            "memory": memory, "is_silent": is_silent,
        }  # fmt: skip
        self._limit = ConcurrencyLimit(processes or max(2, min(8, os.cpu_count() or 2)))
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    async def call(self, *arguments: Any, timeout: float = 0.0) -> Any:
        """Return what the function returns, in terms of JSON. Cancelling kills the process at work.

        Args:
            arguments: Arguments that can be pickled.
            timeout: Seconds after which the process ends itself; 0 is the time that the verdict has left.

        Raises:
            WorkerCallError: The function raised.
            WorkerDiedError: The process ended before it answered; the next call starts another.
        """
        content = pickle.dumps(arguments)
        async with self._limit.slot():
            worker = self._idle.pop() if self._idle else await self._start()
            request = pickle.dumps((timeout or time_left(), content))
            try:
                answer = await run_in_thread(lambda: worker.ask(request))
            except BaseException:
                worker.process.kill()
                raise
            self._idle.append(worker)
        if answer.get("printed"):
            sys.stdout.write(answer["printed"])
        if "error" in answer:
            raise WorkerCallError(answer["error"])
        return answer["value"]

    async def _start(self) -> _Worker:
        setup = pickle.dumps({**self._setup, "path": sys.path})
        with waiting():
            return await run_in_thread(lambda: _Worker(setup))

    async def close(self) -> None:
        """End the processes; a later call starts new ones."""
        _end_all(self._idle)


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()


def _pickled(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(function)
    except Exception as error:  # objects raise anything when they are pickled
        raise ValueError(
            f"it cannot be sent to a grading process ({type(error).__name__}: {error}). Make what it refers to inside "
            "of it, write it as `async def`, or register it with is_quick=True."
        ) from error
    return content


def _file_modules(function: Any) -> list[tuple[str, str]]:
    """Return names and files of modules of the function that cannot be imported by name (``path: my_rewards.py``)."""
    found = []
    for part in (function, *getattr(function, "__dict__", {}).values()):
        name = getattr(part, "__module__", None)
        file = getattr(sys.modules.get(name or ""), "__file__", None)
        if name and file and name != "__main__" and "." not in name and PathFinder.find_spec(name) is None:
            found.append((name, file))
    return found
