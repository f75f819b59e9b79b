"""A few child processes that answer JSON lines, replaced when they die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.rewards.concurrency import ConcurrencyLimit, run_in_thread


class WorkerDiedError(RuntimeError):
    """A child process ended before it answered; ``signal`` is what killed it, or 0."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class _Worker:
    """One child process."""

    def __init__(self, script: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # -P: the folder of the script must not come before the standard library on the path.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )

    def ask(self, line: bytes) -> bytes:
        """Write a line and wait for the answer; raises :class:`WorkerDiedError`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):  # dead, or closed by another thread
            answer = b""
        if answer.endswith(b"\n"):
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

    A process answers one request at a time; it limits its own time and memory, and dies where it must. Processes end
    with :meth:`close`, with this object, or with the interpreter.

    Args:
        script: A Python file that reads JSON lines from standard input and answers each with one.
        processes: Most processes at a time.
    """

    def __init__(self, script: Path, processes: int) -> None:
        if processes < 1:
            raise ValueError(f"processes={processes}: must be at least 1")
        self._script = script
        self._limit = ConcurrencyLimit(processes)
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to ``request``; waits for a free process. Cancelling kills the process at work.

        Raises:
            WorkerDiedError: The process ended before it answered; the next request starts another.
        """
        async with self._limit.slot():
            worker = self._idle.pop() if self._idle else await run_in_thread(lambda: _Worker(self._script))
            line = json.dumps(request).encode() + b"\n"
            try:
                answer = await run_in_thread(lambda: worker.ask(line))
            except BaseException:
                worker.process.kill()
                raise
            self._idle.append(worker)
        result: dict[str, Any] = json.loads(answer)
        return result

    async def close(self) -> None:
        """End the processes; a later request starts new ones."""
        _end_all(self._idle)


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()
