"""Runs that several tests look at, each made once."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    port = free_port()
    words = [sys.executable, "-m", "tests.warm_ray_head", "start", "--head", f"--port={port}", "--block"]
    words += ["--num-cpus=16", "--include-dashboard=false", "--disable-usage-stats"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with (
        # In its usual folder it would leave its address, and whoever starts Ray next would look for it there.
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            words, env=environment(RAY_TMPDIR=folder, **token), stdout=subprocess.DEVNULL, start_new_session=True
        ) as head,
    ):
        try:
            until = time.monotonic() + 240
            while not _answers(port):
                assert head.poll() is None and time.monotonic() < until, "the cluster does not start"
                time.sleep(0.1)
            yield {"RAY_ADDRESS": f"127.0.0.1:{port}", **token}
        finally:
            # Asked to end, it would wait half a minute for the stores; and `ray stop` ends every cluster of a machine.
            os.killpg(head.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
