"""Runs that several tests look at, each made once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e import broken_envs as broken_envs  # registered once, before any test: a later import does nothing
from tests.e2e.support import command, environment, start
from tests.ports import free_port
from tests.sharing import shared_by_group


@dataclass(frozen=True)
class Run:
    """A finished run: where it wrote, and what it said."""

    output_dir: Path
    process: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run from start to end."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = start(command(output_dir="out"), folder, cold=True)
    assert done.returncode == 0, done.stderr
    return Run(folder / "out", done)


@dataclass(frozen=True)
class BrokenRun(Run):
    """A run that was stopped again and again: ``interrupted`` is the process that Ctrl-C ended."""

    interrupted: subprocess.CompletedProcess[str]
    saved_by_interrupt: list[str]


@pytest.fixture(scope="session")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> BrokenRun:
    """The same run, stopped by Ctrl-C, killed in an update, in a rollout and in a checkpoint, and resumed each time."""
    folder = tmp_path_factory.mktemp("resumed")
    words = command(output_dir="out", env_modules="[sabotage]", resume_from_checkpoint="true")
    interrupted = start(words, folder, ROLL_TEST_KILL="rollout:2", ROLL_TEST_SIGNAL="SIGINT")
    saved = sorted(path.name for path in (folder / "out" / "checkpoints").iterdir())
    # Steps 2, 3 (killed); from step 2: 3, 4 (killed); from step 2: 3, 4 (killed while it is written).
    for moment in ("update:3", "rollout:2", "checkpoint:1"):
        done = start(words, folder, ROLL_TEST_KILL=moment)
        assert done.returncode == -signal.SIGKILL, (moment, done.stdout, done.stderr)
    done = start(words, folder)
    assert done.returncode == 0, done.stderr
    return BrokenRun(folder / "out", done, interrupted, saved)


@pytest.fixture(scope="session")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that runs on Ray must equal; the tags that it registers are forgotten again."""
    from roll.envs import ENV_TYPES, TAGS
    from roll.pipelines.agentic import run_agentic
    from tests.e2e.ray_support import AGENTIC
    from tests.e2e.support import small_config

    folder = tmp_path_factory.mktemp("local") / "out"
    with ENV_TYPES.restored(), TAGS.restored():
        run_agentic(small_config(folder, **AGENTIC))
    return folder


@pytest.fixture
def ray_machine() -> dict[str, str]:
    """A Ray of one machine, started as a person starts it; returns the variables of programs that join it.

    Without them each program starts a Ray of its own, whose processes take longer than a small run.
    """
    return shared_by_group(_ray_machine)


@contextmanager
def _ray_machine() -> Iterator[dict[str, str]]:
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Ray gives a node half a minute to come up, which on a machine with much else to do is not enough.
    for tries_left in (2, 1, 0):
        port = free_port()
        with _head(port, variables) as is_up:
            if is_up:
                yield {"RAY_ADDRESS": f"127.0.0.1:{port}", **variables}
                return
        assert tries_left, "the cluster does not start; what it said is above"


@contextmanager
def _head(port: int, variables: dict[str, str]) -> Iterator[bool]:
    """Start a machine of Ray, and end it; gives whether it came up."""
    words = [sys.executable, "-m", "tests.warm_ray_head", "start", "--head", f"--port={port}", "--block"]
    words += ["--num-cpus=16", "--include-dashboard=false", "--disable-usage-stats"]
    # In its usual folder it would leave its address, and whoever starts Ray next would look for it there.
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        given, said = environment(RAY_TMPDIR=folder, PYTHONUNBUFFERED="1", **variables), Path(folder) / "said"
        with said.open("w") as output:
            head = subprocess.Popen(words, env=given, stdout=output, start_new_session=True)
        try:
            yield _is_up(head, said)
        finally:
            # Asked to end, it would wait half a minute for the stores; `ray stop` ends every cluster of a machine.
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def _is_up(head: subprocess.Popen[bytes], said: Path) -> bool:
    """Wait until a machine of Ray is all there, not only who answers at its port; false where it gave up."""
    until = time.monotonic() + 240
    while "Ray runtime started" not in said.read_text():
        if head.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
