"""Commands of agents in the sandbox and in containers: what they reach, what they leave, what they make of tests."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from test_agent_programs import PROGRAM, play  # noqa: E402

from roll.envs import Tag, make  # noqa: E402
from roll.envs.errors import EnvConfigError  # noqa: E402
from roll.sandbox import capabilities  # noqa: E402
from roll.trajectories.model import Status, Trajectory  # noqa: E402
from tests.containers import IMAGE, PYTHON, SEEN, containers, docker, podman  # noqa: E402
from tests.rings import exhaustive_but  # noqa: E402

pytestmark = pytest.mark.processes
CONTAINERS = {"podman": podman, "docker": docker}

CURIOUS = (
    PROGRAM
    + """
import socket
seen = {"policy": float(said == "fine")}

def reaches(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return 1.0
    except OSError:
        return 0.0

def anywhere(address):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((address, 53))
        return 1.0
    except OSError:
        return 0.0

seen["another_port"] = reaches(int(sys.argv[2]))
seen["another_machine"] = max(anywhere("10.255.255.1"), anywhere("192.0.2.1"))
seen["secret_file"] = float(os.path.exists(sys.argv[3]))
seen["secret_variable"] = float("ROLL_TEST_SECRET" in os.environ)
seen["others"] = float(len([name for name in os.listdir("/proc") if name.isdigit()]) > 3)
os.makedirs("made/by"); open("made/by/agent.txt", "w").write("here")
json.dump({"reward": 0.5, **seen}, open(os.environ["ROLL_REWARD"], "w"))
"""
)


class Place:
    """Where commands are shut in: the sandbox, or a container of ``podman`` or ``docker``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.python = sys.executable if name == "sandbox" else PYTHON

    def options(self, *read: Path) -> dict[str, Any]:
        seen = [str(path) for path in read]
        if self.name == "sandbox":
            return {"sandbox": {"read": seen} if seen else True}
        return {"container": {"image": IMAGE, "program": self.name, "read": [*SEEN, *seen]}}

    def play(self, *read: Path, timeout: float = 60.0, **options: Any) -> Trajectory:
        """Play one episode there."""
        (played,) = play(timeout=timeout, **options, **self.options(*read))
        return played


@pytest.fixture(scope="module", params=exhaustive_but(["sandbox", *CONTAINERS], "sandbox", "podman"))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param in CONTAINERS:
            stack.enter_context(CONTAINERS[request.param]())
        elif capabilities().network != "namespace":
            pytest.skip("this machine allows no namespaces")
        yield Place(request.param)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "agent.py").write_text(CURIOUS)
    return folder


def test_it_reaches_the_policy_and_nothing_else(
    place: Place, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLL_TEST_SECRET", "x")
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = [place.python, "agent.py", "Hello", str(other.getsockname()[1]), str(secret)]
        played = place.play(command=command, files=str(files))
        other.settimeout(0.1)
        with pytest.raises(TimeoutError):
            other.accept()
    assert (played.status, played.score) == (Status.COMPLETED, 0.5), played.error
    walls = ("another_port", "another_machine", "secret_file", "secret_variable", "others")
    assert played.metrics["policy"] == 1.0 and {name: played.metrics[name] for name in walls} == dict.fromkeys(walls, 0)


def test_a_file_that_is_named_can_be_read(place: Place, files: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown.txt"
    shown.write_text("x")
    command = [place.python, "agent.py", "Hello", "1", str(shown)]
    played = place.play(shown, command=command, files=str(files))
    assert played.metrics["secret_file"] == 1.0, played.error


def test_tests_that_it_changed_count_for_nothing(place: Place, tmp_path: Path) -> None:
    files, checks, outside = tmp_path / "files", tmp_path / "checks", tmp_path / "outside"
    for folder in (files / "tests", checks / "tests", outside):
        folder.mkdir(parents=True)
    cheat = "import os, shutil\nshutil.rmtree('tests')\nos.symlink(sys.argv[2], 'tests')\n"
    (files / "agent.py").write_text(PROGRAM + cheat)
    (checks / "tests" / "check.py").write_text("import answer\nassert answer.NUMBER == 2\n")
    (files / "answer.py").write_text("NUMBER = 1\n")
    played = place.play(
        command=[place.python, "agent.py", "Hello", str(outside)],
        check=[place.python, "-c", "import runpy; runpy.run_path('tests/check.py')"],
        files=str(files),
        check_files=str(checks),
    )
    assert (played.status, played.score) == (Status.COMPLETED, 0.0), played.error
    assert not list(outside.iterdir())


def test_what_it_left_is_graded_and_then_deleted(
    place: Place, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (files / "agent.py").write_text(PROGRAM)
    check = [place.python, "-c", "assert open('answer.txt').read() == 'fine'"]
    played = place.play(command=[place.python, "agent.py", "Hello"], check=check, files=str(files))
    assert (played.status, played.score) == (Status.COMPLETED, 1.0), played.error
    assert not list(temporary.iterdir())


def test_one_that_breaks_is_an_error_with_its_last_words(place: Place, files: Path) -> None:
    (files / "agent.py").write_text(PROGRAM)
    played = place.play(command=[place.python, "agent.py", "crash"], files=str(files))
    assert (played.status, played.score) == (Status.ERROR_ENV, None)
    assert "exit code 1: …it broke" in (played.error or "")


def test_one_that_a_signal_ends_is_an_error_that_names_it(place: Place, files: Path) -> None:
    (files / "agent.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    played = place.play(command=[place.python, "agent.py"], files=str(files))
    assert (played.status, played.score) == (Status.ERROR_ENV, None)
    assert "SIGSEGV" in (played.error or "")


def test_one_that_hangs_is_killed_with_all_that_it_started(place: Place) -> None:
    mark = f"roll-{os.urandom(8).hex()}"
    command = ["/usr/bin/bash", "-c", f"(exec -a {mark} sleep 300 & exec -a {mark} sleep 300)"]
    played = place.play(command=command, timeout=8.0)
    assert played.status is Status.ERROR_TIMEOUT
    end = time.monotonic() + 20
    while left(place, mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left(place, mark)


def left(place: Place, mark: str) -> list[str]:
    """Return processes of a name, and containers."""
    found = containers() if place.name in CONTAINERS else []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(path)] if path.read_bytes().startswith(mark.encode()) else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"program": "agent_samples:good", "sandbox": True}, "cannot be shut in"),
        ({"program": "agent_samples:good", "container": "any"}, "container: a function of this process cannot be"),
        ({"command": ["true"], "sandbox": True, "container": "any"}, "sandbox and container are both set"),
        ({"command": ["true"], "sandbox": {"memory": 5}}, "no option memory: it has read, file_mb, memory_mb"),
        ({"command": ["true"], "sandbox": {"memory_mb": 0}}, "must be positive"),
        ({"command": ["true"], "sandbox": {"read": ["absent/folder"]}}, "absent/folder"),
        ({"command": ["true"], "check_files": "absent"}, "check_files: there is no folder absent"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_played(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvConfigError, match=words):
        make(Tag("Agent", "agent", options))
