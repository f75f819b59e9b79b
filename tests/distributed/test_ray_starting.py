"""A real Ray that gives itself up while it starts, as on a machine that has too much else to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray  # noqa: E402
from ray._private import services  # noqa: E402

from roll.config.errors import RunError  # noqa: E402
from roll.distributed import ray_starting  # noqa: E402

pytestmark = pytest.mark.processes

OPTIONS = {"num_cpus": 1, "include_dashboard": False, "logging_level": "ERROR"}


@pytest.fixture(autouse=True)
def no_ray_is_left() -> Iterator[None]:
    assert not ray.is_initialized()
    yield
    ray.shutdown()


def late(monkeypatch: pytest.MonkeyPatch, times: int) -> list[set[int]]:
    """Let Ray find so many times that half a minute is over; returns which processes of its own ran at each."""
    running: list[set[int]] = []
    real = services.get_node

    def get_node(*arguments: Any, **options: Any) -> Any:
        running.append(ray_starting._processes())
        if len(running) <= times:
            raise Exception("The current node timed out during startup.")
        return real(*arguments, **options)

    monkeypatch.setattr(services, "get_node", get_node)
    return running


def test_it_is_started_again_and_what_was_left_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ray_starting._processes()
    running = late(monkeypatch, times=1)
    ray_starting.start_here(**OPTIONS)
    first, second = running[0] - before, running[1] - before
    assert first and second and not first & second
    assert not first & ray_starting._processes()
    assert ray.get(ray.put(7)) == 7


def test_a_machine_that_is_too_busy_is_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ray_starting._processes()
    running = late(monkeypatch, times=9)
    with pytest.raises(RunError, match=r"did not come up on this machine, 3 times.*cluster=local"):
        ray_starting.start_here(**OPTIONS)
    assert len(running) == 3 and ray_starting._processes() <= before


def test_any_other_mistake_is_raised_at_once() -> None:
    before = ray_starting._processes()
    with pytest.raises(ValueError, match="must be nonnegative"):
        ray_starting.start_here(num_cpus=-1)
    assert ray_starting._processes() <= before


ALONE = """
import os, ray
from roll.distributed.ray_starting import start_here
start_here(num_cpus=1, include_dashboard=False, logging_level="ERROR")
print(ray.get(ray.remote(lambda: 7).remote()))
"""


def test_a_home_that_nobody_can_write_to_is_enough_and_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    names = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    names |= {"HOME": str(tmp_path / "file" / "home"), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", ALONE], env=names, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
