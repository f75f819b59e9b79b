"""Programs of ours in processes: forked warm from one that has imported everything, or cold, as a shell starts them."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Read when libraries are loaded or Python starts: with other values the warm process cannot stand for a new one.
_AT_IMPORT = (
    "OMP_NUM_THREADS",
    "GOMP_SPINCOUNT",
    "THP_MEM_ALLOC_ENABLE",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "PYTHONDEVMODE",
)
FOLDER_VARIABLE = "ROLL_TEST_WARM"
"""Environment variable: the folder where the warm processes of these tests listen."""
GPU_VARIABLE = "ROLL_TEST_GPU"
"""Environment variable: set for tests on GPUs, which none of the others sees."""
OWNER_VARIABLE = "ROLL_TEST_OWNER"
"""Environment variable: the process that they end with."""


@dataclass(frozen=True)
class Other:
    """An environment that is installed apart.

    Attributes:
        python: Its interpreter, which runs the warm process.
        command: What programs that are forked there take for their interpreter.
    """

    python: Path
    command: Path


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
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, signal.SIGKILL)

    def _line(self) -> str:
        line = self._answers.recv(64)
        assert line, "the warm process is gone; what it said is above"
        return line.decode()


def connect(kind: str, environment: Mapping[str, str], other: Other | None = None) -> socket.socket:
    """Return a connection to a warm process, which is started if none listens yet and ends with the tests.

    Args:
        kind: What it has imported: a key of ``warm_server.IMPORTS``.
        environment: Of what is to be forked.
        other: Where it is to run, if not here.
    """
    at_import = {"OMP_NUM_THREADS": "1", **{name: environment[name] for name in _AT_IMPORT if name in environment}}
    named = hashlib.sha256(repr((kind, sorted(at_import.items()))).encode()).hexdigest()[:16]
    address = Path(os.environ[FOLDER_VARIABLE]) / named
    with open(address.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(address))
        except OSError:
            _start(kind, address, at_import, other)
            connection.connect(str(address))
    return connection


def _start(kind: str, address: Path, at_import: Mapping[str, str], other: Other | None) -> None:
    address.unlink(missing_ok=True)
    # The code beside these tests, whichever copy of it is installed; there, none of ours.
    variables = {**os.environ, **at_import, "PYTHONPATH": "" if other else str(ROOT)}
    readable, writable = os.pipe()
    words = [other.python if other else sys.executable, ROOT / "tests" / "warm_server.py", kind, address]
    subprocess.run(
        [*map(str, words), os.environ[OWNER_VARIABLE], str(writable), *([str(other.command)] if other else [])],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=2,  # what imports say is not the output of the first program
        pass_fds=[writable],
        start_new_session=True,
        check=True,
    )
    os.close(writable)
    with open(readable, "rb") as said:
        assert said.read() == b"ready", "the warm process did not start; what it said is above"


def offer_warm_processes() -> None:
    """Make a place for warm processes, which end with this one; processes that share tests share it."""
    if "PYTEST_XDIST_WORKER" in os.environ and FOLDER_VARIABLE in os.environ:
        return
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    os.environ[FOLDER_VARIABLE] = folder = tempfile.mkdtemp(prefix="roll-warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


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
    return start("program", words[1:], cwd, environment, streams, terminal=terminal)


def start(
    kind: str,
    words: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    streams: Sequence[int],
    *,
    terminal: bool = False,
    other: Other | None = None,
) -> WarmProgram:
    """Fork from the warm process of a kind; ``words`` are those behind ``python``. See :func:`fork` and `connect`."""
    connection = connect(kind, environment, other)
    request = {"words": list(words), "cwd": str(cwd), "environment": dict(environment), "terminal": terminal}
    message = json.dumps(request).encode()
    socket.send_fds(connection, [len(message).to_bytes(8)], list(streams))
    connection.sendall(message)
    return WarmProgram(connection)


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
