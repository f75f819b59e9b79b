"""Programs of ours in processes: forked warm from one that has imported everything, or cold, as a shell starts them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Read when libraries are loaded or Python starts: with other values the warm process cannot stand for a new one.
_AT_IMPORT = ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDEVMODE")


class WarmProgram:
    """A running program that was forked; as much of ``subprocess.Popen`` as the tests use."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid = int(self._line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or ``None`` while it runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._line())
            self._answers.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit status, negative for a signal.

        Raises:
            TimeoutError: It did not end within ``timeout`` seconds.
        """
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise TimeoutError(f"still running after {timeout} s")
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _line(self) -> str:
        line = self._answers.recv(64)
        assert line, "the warm process is gone; what it said is above"
        return line.decode()


@cache
def _server(environment: tuple[tuple[str, str], ...]) -> socket.socket:
    """A warm process, which ends with this one."""
    ours, theirs = socket.socketpair()
    # The code beside these tests, whichever copy of it is installed.
    variables = {**os.environ, **dict(environment), "PYTHONPATH": str(ROOT)}
    with theirs:
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "warm_server.py"), str(theirs.fileno())],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    assert ours.recv(64) == b"ready\n", "the warm process did not start; what it said is above"
    return ours


def can_fork(words: Sequence[str]) -> bool:
    """Whether these words run a script or a module with this interpreter."""
    return words[0] == sys.executable and (words[1].endswith(".py") or words[1] == "-m")


def fork(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str], streams: Sequence[int], *, terminal: bool = False
) -> WarmProgram:
    """Run a Python program in a process that has imported already what it imports.

    Args:
        words: The command line: ``sys.executable``, a script (or ``-m`` and a module), its arguments.
        cwd: Where to run it.
        environment: The whole of its environment.
        streams: Open files that become its standard input, output and error; or one, a terminal.
        terminal: Whether ``streams`` is a terminal, which then controls a session of its own.
    """
    assert can_fork(words), words
    at_import = {"OMP_NUM_THREADS": "1", **{name: environment[name] for name in _AT_IMPORT if name in environment}}
    server = _server(tuple(sorted(at_import.items())))
    request = {"words": list(words[1:]), "cwd": str(cwd), "environment": dict(environment), "terminal": terminal}
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(server, [json.dumps(request).encode()], [*streams, theirs.fileno()])
    return WarmProgram(ours)


def run(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a forked process, as ``subprocess.run`` does in a new one.

    Raises:
        subprocess.TimeoutExpired: It did not end within ``timeout`` seconds, and was killed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error, open(os.devnull) as nothing:
        program = fork(words, cwd, environment, [nothing.fileno(), output.fileno(), error.fileno()])
        try:
            status = program.wait(timeout)
        except BaseException as problem:
            program.kill()
            program.wait()
            if isinstance(problem, TimeoutError):
                raise subprocess.TimeoutExpired(list(words), timeout, _text(output), _text(error)) from None
            raise
        return subprocess.CompletedProcess(list(words), status, _text(output), _text(error))


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return str(file.read().decode())  # type: ignore[attr-defined]
