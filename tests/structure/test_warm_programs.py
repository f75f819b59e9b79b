"""What of a program in a warm process is left once it was killed, or nobody waits for it: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import programs

pytestmark = pytest.mark.processes

SCRIPT = """
import multiprocessing, time
from pathlib import Path

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    child.start()
    Path("child.partial").write_text(str(child.pid))
    Path("child.partial").rename("child")
    time.sleep(600)
"""


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process with which the warm processes of a test end."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setenv(programs.OWNER_VARIABLE, str(process.pid))
        monkeypatch.setenv(programs.FOLDER_VARIABLE, folder)  # short: it becomes the address of a socket
        yield process
        process.kill()


def killed(program: programs.WarmProgram, owner: subprocess.Popen[bytes]) -> None:
    program.kill()
    assert program.wait(20) == -signal.SIGKILL


def killed_by_somebody(program: programs.WarmProgram, owner: subprocess.Popen[bytes]) -> None:
    os.kill(program.pid, signal.SIGKILL)


def forgotten(program: programs.WarmProgram, owner: subprocess.Popen[bytes]) -> None:
    program._answers.close()


def left_behind(program: programs.WarmProgram, owner: subprocess.Popen[bytes]) -> None:
    owner.kill()


@pytest.mark.parametrize("end", [killed, killed_by_somebody, forgotten, left_behind])
def test_a_program_ends_with_all_that_multiprocessing_started_for_it(
    end: Callable[[programs.WarmProgram, subprocess.Popen[bytes]], None],
    owner: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with open(os.devnull, "r+") as nothing:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        program = programs.start("bare", ["script.py"], tmp_path, environment, [nothing.fileno()] * 3)
    assert until((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    assert is_alive(child)

    end(program, owner)

    assert until(lambda: not is_alive(program.pid) and not is_alive(child))


ENDS = """
import atexit, sys, threading, time

class Held:
    def __del__(self):
        print("let go", end=" ", flush=True)

def say_late():
    time.sleep(0.3)
    print("thread", end=" ")

held, ring = Held(), Held()
ring.itself = ring
threading.Thread(target=say_late).start()
atexit.register(print, "atexit", end=" ")
sys.stderr.write("said")
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(259)", 3),
        ("sys.exit(-1)", 255),
        ("sys.exit('no')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_a_program_ends_as_one_that_was_started_cold(
    owner: subprocess.Popen[bytes], tmp_path: Path, last: str, status: int
) -> None:
    (tmp_path / "script.py").write_text(ENDS + last)
    words, variables = [sys.executable, "script.py"], {**os.environ, "OMP_NUM_THREADS": "1"}
    cold = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True)
    with open(os.devnull) as nothing, open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
        streams = [nothing.fileno(), out.fileno(), err.fileno()]
        assert programs.start("bare", words[1:], tmp_path, variables, streams).wait(60) == status == cold.returncode
    assert (tmp_path / "out").read_text() == cold.stdout == "thread atexit let go let go "
    assert (tmp_path / "err").read_text().splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def until(holds: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until something holds; return whether it did in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
