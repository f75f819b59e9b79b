"""What is true of containers alone: limits, networks, and what becomes of them when something breaks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from agent_play import answer  # noqa: E402
from test_agent_programs import PROGRAM, play  # noqa: E402

from roll.envs import Tag, make  # noqa: E402
from roll.envs.errors import EnvConfigError  # noqa: E402
from roll.generation import Completion, GenerationRequest  # noqa: E402
from roll.trajectories.model import Status, Trajectory  # noqa: E402
from tests.containers import IMAGE, PYTHON, SEEN, containers, podman  # noqa: E402

pytestmark = pytest.mark.processes

HERE = {"image": IMAGE, "program": "podman", "read": SEEN}
WRAPPED = """#!/bin/sh
{disturbed}
exec {real} "$@"
"""


@pytest.fixture(scope="module", autouse=True)
def working_podman() -> Iterator[None]:
    with podman():
        yield


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "agent.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a script before Podman, with lines of a test's own."""

    def disturb(lines: str) -> None:
        wrapper = tmp_path / "bin" / "podman"
        wrapper.parent.mkdir()
        wrapper.write_text(WRAPPED.format(disturbed=lines, real=shutil.which("podman")))
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")

    return disturb


def shut_in(program: str | list[str], files: Path, timeout: float = 60.0, **container: Any) -> Trajectory:
    """Play an agent in a container: a Python program that goes on after a call of the policy, or a command."""
    command = program
    if isinstance(program, str):
        (files / "agent.py").write_text(PROGRAM + program)
        command = [PYTHON, "agent.py", "Hello"]
    (played,) = play(command=command, files=str(files), container={**HERE, **container}, timeout=timeout)
    return played


@pytest.mark.exhaustive
def test_one_of_a_run_that_was_killed_goes_with_it(tmp_path: Path) -> None:
    starts = f"""
import tempfile
from pathlib import Path
from roll.sandbox import Container, find_container_program

container = Container(program=find_container_program("podman"), image={IMAGE!r}, folder=Path({str(tmp_path)!r}))
with tempfile.TemporaryFile() as said, container.running(["sleep", "301"], {{}}, said, said) as (process, _):
    process.wait()
"""
    run = subprocess.Popen([sys.executable, "-c", starts], env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        wait_until(lambda: running("sleep 301") or run.poll() is not None, 120)
        assert run.poll() is None and len(containers()) == 1
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not containers(), 30)
    assert not running("sleep 301")


@pytest.mark.exhaustive
def test_one_whose_client_dies_is_an_error(files: Path) -> None:
    async def kills(request: GenerationRequest) -> Completion:
        (name,) = containers()  # which is none any more when its client has been killed
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0")
            if b"start" in words and name.encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
        return answer("fine")

    (files / "agent.py").write_text(PROGRAM + "\nimport time; time.sleep(60)")
    command = [PYTHON, "agent.py", "Hello"]
    (played,) = play(command=command, files=str(files), container=HERE, generate=kills, timeout=60.0)
    assert (played.status, played.score) == (Status.ERROR_ENV, None)
    assert "went away before its command ended" in (played.error or "")
    assert containers() == []


@pytest.mark.exhaustive
def test_one_that_says_it_has_ended_and_kills_its_warden_is_killed_all_the_same(files: Path) -> None:
    pretends = """
import signal, time
control = open("/proc/1/cmdline").read().split("\\0")[3]
assert os.path.exists(control + "/began")
open(control + "/ended", "w").write("0")
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        os.kill(int(name), signal.SIGKILL)
time.sleep(300)
"""
    assert shut_in(pretends, files, timeout=8.0).status is Status.ERROR_TIMEOUT
    wait_until(lambda: not containers(), 20)


@pytest.mark.exhaustive
def test_a_check_that_cannot_be_run_is_an_error_and_no_zero(files: Path, tmp_path: Path, disturbed: Any) -> None:
    begun = tmp_path / "begun"
    broken = f'if [ "$1" = start ]; then [ -e {begun} ] && echo "no daemon" >&2 && exit 125; touch {begun}; fi'
    disturbed(broken)
    (played,) = play(
        command=[PYTHON, "agent.py", "Hello"], check=["true"], files=str(files), container=HERE, timeout=60.0
    )
    assert (played.status, played.score) == (Status.ERROR_ENV, None)
    assert "the container could not begin" in (played.error or "") and "no daemon" in (played.error or "")
    assert containers() == []


@pytest.mark.exhaustive
def test_one_on_another_machine_is_not_entered(files: Path, disturbed: Any) -> None:
    disturbed(f'if [ "$1" = inspect ]; then echo {os.getpid()}; exit 0; fi')
    played = shut_in("", files)
    assert played.status is Status.ERROR_ENV
    assert "network: host" in (played.error or "") and "another machine" in (played.error or "")
    assert containers() == []


@pytest.mark.exhaustive
def test_the_network_of_the_machine_reaches_all_of_it(files: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        program = f"\nimport socket; socket.create_connection(('127.0.0.1', {other.getsockname()[1]}), 5)"
        assert shut_in(program, files, network="host").status is Status.COMPLETED
        refused = shut_in(program, files)
    assert refused.status is Status.ERROR_ENV and "ConnectionRefusedError" in (refused.error or "")


def test_memory_and_processes_are_limited(files: Path) -> None:
    forks = "\nimport time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(60)"
    assert "BlockingIOError" in (shut_in(forks, files, processes=20).error or "")
    fills = "\nprint(len(bytearray(os.urandom(1 << 20) * 300)))"
    killed = shut_in(fills, files, memory_mb=64)
    assert killed.status is Status.ERROR_ENV and "SIGKILL" in (killed.error or "")


def test_what_is_mounted_to_be_read_cannot_be_changed(files: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    played = shut_in(f"\nopen({str(shown / 'new')!r}, 'w')", files, read=[*SEEN, str(shown)])
    assert "Read-only file system" in (played.error or "")


def test_it_has_no_rights_of_root_unless_options_give_them(files: Path) -> None:
    program = "\nos.chown('answer.txt', 12345, 12345)"
    assert "PermissionError" in (shut_in(program, files).error or "")
    assert shut_in(program, files, options=["--cap-add=chown"]).status is Status.COMPLETED


@pytest.mark.exhaustive
def test_variables_are_seen_with_any_text(files: Path) -> None:
    (files / "agent.py").write_text(PROGRAM + "\nprint(repr(os.environ['TOLD']), os.environ['ROLL_TASK'])")
    (played,) = play(
        command=[PYTHON, "agent.py", "it's $HOME; `x`"],
        files=str(files),
        container=HERE,
        environment={"TOLD": "two\nlines, 'and' $more="},
        timeout=60.0,
    )
    assert repr("two\nlines, 'and' $more=") in (played.final_observation or "")
    assert played.turns[0].observation == "it's $HOME; `x`"


def test_a_program_that_the_image_lacks_is_an_error(files: Path) -> None:
    played = shut_in(["no-such-program"], files)
    assert played.status is Status.ERROR_ENV and "no-such-program" in (played.error or "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "localhost/absent:1", "program": "podman"}, r"absent:1.*pull localhost/absent:1`, or build it"),
        ({**HERE, "program": "runc"}, "'runc' is no program for containers"),
        ({**HERE, "memory": 5}, "no option 'memory'. Did you mean 'memory_mb'"),
        ({**HERE, "memory_mb": 0}, "memory_mb is 0; it must be a positive whole number"),
        ({**HERE, "read": ["absent/folder"]}, "container.read: there is no .*absent/folder"),
        ({**HERE, "network": "--privileged"}, "container.network: a name is wanted"),
        ({**HERE, "options": [1]}, "container.options: a list of words is wanted"),
        ({"program": "podman"}, "container.image: a name is wanted"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_played(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvConfigError, match=words):
        make(Tag("Agent", "agent", {"command": ["true"], "container": options}))


def running(line: str) -> bool:
    """Whether a process of that command line runs anywhere on this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().replace(b"\0", b" ").strip() == line.encode():
                return True
        except OSError:
            continue
    return False


def wait_until(holds: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
