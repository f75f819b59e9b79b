"""What `make` does on a machine that lacks something: it finds a Python, or says in one line what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rings import exhaustive_but

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "make", "dirname", "pwd", "awk", "grep", "cat", "mktemp", "rm", "mkdir", "touch", "chmod")
REAL = getattr(sys, "_base_executable", sys.executable)

PYTHON = f'exec {REAL} "$@"'
# What follows makes an environment without pip, whose Python only notes what it is asked to do.
INSTALLS = """
case "$1 $2" in
  "-m venv")
    mkdir -p "$3/bin"
    echo 'echo "$0 $*" >> calls; echo "$COMPLAINT" >&2; [ -z "$COMPLAINT" ]' > "$3/bin/python"
    chmod +x "$3/bin/python"
    exit 0;;
esac
"""
OLD = 'case "$2" in *exit*) exit 1;; *print*) echo 3.9; exit 0;; esac'
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; esac'
NEWEST = 'case "$2" in *"3, 15"*) exit 1;; esac'
SHIM = 'echo "pyenv: $0: command not found" >&2; exit 127'


class Machine:
    """A copy of the project, and a PATH that has only what a bare machine has."""

    def __init__(self, folder: Path) -> None:
        self.project, self.path = folder / "project", folder / "bin"
        self.project.mkdir()
        self.path.mkdir()
        for name in ("Makefile", "scripts", "pyproject.toml", "constraints.txt"):
            (self.project / name).symlink_to(ROOT / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.path / tool).symlink_to(found)
        self.free(gigabytes=100)

    def free(self, gigabytes: int) -> None:
        """Say how much of the disk is free, whatever is free on the machine that tests run on."""
        self.add("df", f"echo header; echo /dev/disk 0 0 {gigabytes << 20} 50% /")

    def add(self, name: str, *lines: str) -> None:
        """Install a program: a shell script."""
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (self.path / name).chmod(0o755)

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.path), "HOME": str(self.project), **variables}
        return subprocess.run(
            ["make", *arguments], cwd=self.project, env=environment, capture_output=True, text=True, timeout=60
        )

    def calls(self) -> list[str]:
        """What the Python of the environment was asked to do."""
        noted = self.project / "calls"
        return noted.read_text().splitlines() if noted.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error beside make's own."""
    assert done.returncode != 0
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    return line


NAMES = ["python3.11", "python3.12", "python3.13", "python3.14", "python3.15", "python3", "python"]


@pytest.mark.parametrize("name", exhaustive_but(NAMES, "python3.11", "python"))
def test_any_python_from_3_11_on_is_found(machine: Machine, name: str) -> None:
    machine.add(name, INSTALLS, PYTHON)
    done = machine.make("sokoban", "ARGS=max_steps=1")
    assert done.returncode == 0, done.stderr
    install, start = machine.calls()
    assert install.endswith("-m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e .")
    assert start == ".venv/bin/python examples/start_agentic_pipeline.py --config-name sokoban max_steps=1"


def test_what_is_installed_is_not_installed_again(machine: Machine) -> None:
    machine.add("python3.12", INSTALLS, PYTHON)
    assert machine.make("test").returncode == machine.make("test").returncode == 0
    assert [call.split()[2] for call in machine.calls()] == ["pip", "pytest", "pytest"]


def test_a_run_installs_the_core_alone_and_tests_everything_once(machine: Machine) -> None:
    machine.add("python3.12", INSTALLS, PYTHON)
    for target in ("sokoban", "rlvr", "test", "sokoban"):
        assert machine.make(target).returncode == 0
    installed = [call.split()[-1] for call in machine.calls() if " pip " in call]
    assert installed == [".", ".[dev]"]


def test_where_pip_installs_by_habit_does_not_matter(machine: Machine) -> None:
    machine.add("python3.12", INSTALLS.replace('$0 $*"', '$PIP_USER,$PIP_TARGET,$PIP_PREFIX,"'), PYTHON)
    habits = {"PIP_USER": "1", "PIP_TARGET": "/elsewhere", "PIP_PREFIX": "/elsewhere"}
    assert machine.make("core", **habits).returncode == 0
    assert machine.calls() == ["0,,,"]


def test_old_broken_and_half_installed_ones_are_passed_over(machine: Machine) -> None:
    machine.add("python3.11", SHIM)
    machine.add("python3.12", WITHOUT_VENV, INSTALLS, PYTHON)
    machine.add("python3", OLD, INSTALLS, PYTHON)
    machine.add("python3.13", INSTALLS, PYTHON)
    assert machine.make("setup").returncode == 0
    # One that pyenv has, and that no shim runs because it is not switched on.
    (machine.path / "python3.13").unlink()
    own = machine.project / ".pyenv" / "versions" / "3.13.0" / "bin"
    own.mkdir(parents=True)
    machine.add("python", INSTALLS, PYTHON)
    (machine.path / "python").rename(own / "python3.13")
    shutil.rmtree(machine.project / ".venv")
    assert machine.make("setup").returncode == 0


def test_a_python_that_is_newer_than_what_is_pinned_gets_the_newest_packages(machine: Machine) -> None:
    machine.add("python3", NEWEST, INSTALLS, PYTHON)
    done = machine.make("sokoban")
    assert done.returncode == 0 and f"{machine.path}/python3 is newer, so the newest packages" in done.stderr
    assert machine.calls()[0].endswith("-m pip install --no-compile --quiet --disable-pip-version-check -e .")
    shutil.rmtree(machine.project / ".venv")
    refused = machine.make("test", COMPLAINT="ERROR: No matching distribution found for ray")
    last = [line for line in refused.stderr.splitlines() if not line.startswith("make")][-1]
    assert refused.returncode != 0
    assert "Not all packages are there" in last and "Take Python 3.11 to 3.14: make PYTHON=python3.14" in last


def test_no_python_is_said(machine: Machine) -> None:
    assert only_line(machine.make("sokoban")).startswith("No Python here: roll needs Python 3.11 or newer")


def test_an_old_python_is_said(machine: Machine) -> None:
    machine.add("python3", OLD, PYTHON)
    line = only_line(machine.make("test"))
    assert line == f"{machine.path}/python3 is Python 3.9: roll needs Python 3.11 or newer."


def test_a_missing_venv_module_is_said(machine: Machine) -> None:
    machine.add("python3.12", WITHOUT_VENV, PYTHON)
    assert "python3.12 has no venv module. Install it (Debian, Ubuntu: apt install python" in only_line(
        machine.make("sokoban")
    )


def test_a_python_that_is_named_is_the_only_one_tried(machine: Machine) -> None:
    machine.add("python3.11", INSTALLS, PYTHON)
    assert "(looked for python3.12)" in only_line(machine.make("test", "PYTHON=python3.12"))


def test_too_little_space_is_said_before_anything_is_installed(machine: Machine) -> None:
    machine.add("python3.11", INSTALLS, PYTHON)
    machine.free(gigabytes=1)
    assert only_line(machine.make("test")).startswith("Not enough disk space: the packages take about 4 GB, and 1 GB")
    assert machine.calls() == []


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is full"),
        pytest.param(
            *("error: command 'gcc' failed: No such file or directory", "and there is no compiler. Install one"),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("ERROR: ... NewConnectionError('Failed to establish a new connection')", "could not be downloaded"),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("ERROR: something else", "The packages could not be installed into .venv"), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_what_stopped_pip_is_said_last_and_it_is_tried_again(machine: Machine, complaint: str, said: str) -> None:
    machine.add("python3.11", INSTALLS, PYTHON)
    done = machine.make("test", COMPLAINT=complaint)
    assert done.returncode != 0
    first, last = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert first == complaint and said in last
    assert machine.make("test").returncode == 0
    assert [call.split()[2] for call in machine.calls()] == ["pip", "pip", "pytest"]
