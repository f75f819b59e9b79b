"""A real Ray session for tests of stores, and stores in it under names of their own."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from roll.experience.base import ExperienceStore, Reader
from roll.experience.indexed import TRAIN


class Session:
    """Ray on this machine, started once for all tests of a file.

    Attributes:
        address: What other programs join it by.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._numbers = itertools.count()
        self._name = ""

    def new_name(self) -> str:
        """Return a name that no store has; the store of the name before it ends."""
        self.end()
        self._name = f"store-{next(self._numbers)}"
        return self._name

    def end(self) -> None:
        """End the store of the last name."""
        import ray

        with suppress(ValueError):
            ray.kill(ray.get_actor(self._name, namespace="roll"))

    def kill(self, name: str, folder: Path | None = None) -> None:
        """Kill the process of a store, as the system does where memory is short, and wait for its end."""
        from roll.distributed.ray_store import RayStore

        pid = RayStore(name, folder=folder).standing().pid
        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 30
        with suppress(FileNotFoundError, ProcessLookupError):  # it is gone
            while time.monotonic() < until:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
                time.sleep(0.01)


@contextmanager
def ray_session() -> Iterator[Session]:
    """Yield Ray on this machine."""
    ray = pytest.importorskip("ray")
    from roll.distributed.ray_starting import start_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
        patch.setenv("PYTHONPATH", path)  # of the actors, which are forks of what starts here
        start_here(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        address = ray.get_runtime_context().gcs_address
        patch.setenv("RAY_ADDRESS", address)
        session = Session(address)
        try:
            yield session
        finally:
            session.end()
            ray.shutdown()


def ray_store(store: str, reader: Reader = TRAIN) -> ExperienceStore:
    """Open a store by ``ray:NAME`` or ``ray:NAME:FOLDER``."""
    from roll.distributed.ray_store import RayStore

    _, name, folder = f"{store}:".split(":")[:3]
    return RayStore(name, reader, folder=Path(folder) if folder else None)
