"""Runs that meet in a folder, as real processes: one has it, the others are told who."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roll.runs import lock
from roll.runs.lock import LOCK_FILE, FolderInUseError, Holder, hold

pytestmark = pytest.mark.processes

_HOLDER = """
import os, sys, time
from pathlib import Path
from roll.runs.lock import hold
with hold(Path(sys.argv[1])):
    if "fork" in sys.argv:
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # the child, when it has let the folder go
            time.sleep(60)
    else:
        print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds the folder until its standard input ends."""
    command = [sys.executable, "-c", _HOLDER, str(folder), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_second_run_is_told_who_has_the_folder_and_gets_it_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "out"
    with other_run(folder) as (process, _):
        with pytest.raises(FolderInUseError) as refused, hold(folder):
            pass
        message = str(refused.value)
        assert f"process {process.pid} on this machine, since 20" in message and "runs.lock import hold" in message
        assert f"kill {process.pid}" in refused.value.fix and f"output_dir={folder}-2" in refused.value.fix
        process.communicate("")
    assert not (tmp_path / "a").exists()
    with hold(folder) as has_locks:
        assert has_locks and (folder / LOCK_FILE).is_file()


def test_a_run_that_was_killed_does_not_keep_the_folder(tmp_path: Path) -> None:
    with other_run(tmp_path) as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK_FILE).exists()
    with hold(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_forked_child_that_outlives_its_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    with other_run(tmp_path, "fork") as (process, child):
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            with hold(tmp_path):
                pass
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_child_of_the_run_does_not_let_the_folder_go_when_it_ends(tmp_path: Path) -> None:
    with hold(tmp_path):
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(FolderInUseError, match=r"one of this very process"), hold(tmp_path):
            pass


def test_only_one_of_many_runs_that_start_at_once_gets_the_folder(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom roll.runs.lock import *\n"
        "sys.stdin.readline()\ninside = Path(sys.argv[1]) / 'inside'\n"
        "for _ in range(60):\n"
        "    try:\n"
        "        with hold(Path(sys.argv[1])):\n"
        "            inside.mkdir(); inside.rmdir()\n"
        "    except FolderInUseError: pass\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a" / "out")], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    for run in runs:
        run.communicate()
    assert [run.returncode for run in runs] == [0] * 4


def test_folders_that_cannot_be_made_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / "new" / ("x" * 300), Path("/proc/out")):
        with pytest.raises(OSError), hold(folder):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_locks_a_run_of_this_machine_is_recognised_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with other_run(tmp_path) as (process, _), monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(FolderInUseError, match=f"process {process.pid}"), hold(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with hold(tmp_path) as has_locks:
            assert not has_locks


def test_the_run_of_another_machine_is_named_with_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_run(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
        with pytest.raises(FolderInUseError) as refused, hold(tmp_path):
            pass
    assert f"on {os.uname().nodename}" in str(refused.value) and "when the file server notices" in refused.value.fix


def test_a_long_command_line_does_not_fill_the_screen() -> None:
    holder = Holder(os.getppid(), socket.gethostname(), "now", "x" * 5000)
    assert len(str(FolderInUseError(Path("out"), holder))) < 600
    assert "cannot be told" in str(FolderInUseError(Path("out"), None))
    assert lock.Holder.this_process().is_alive
