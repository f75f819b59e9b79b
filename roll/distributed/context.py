"""What a worker knows about itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The place of a worker in its role.

    Attributes:
        role: Name of the role.
        rank: Number of the worker in it.
        size: Workers of the role.
        local_rank: Number of the worker among those of its role on the same machine.
        local_size: How many those are.
        devices: Global ids of its devices; empty on the CPU.
        own_process: Whether it has a process to itself, with the environment variables of ``torch.distributed``.
    """

    role: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    devices: tuple[int, ...] = ()
    own_process: bool = False

    @property
    def part(self) -> tuple[int, int]:
        """Its number, and how many workers of the role there are."""
        return self.rank, self.size

    @property
    def name(self) -> str:
        """Name in logs: role and rank."""
        return f"{self.role}-{self.rank}"

    def environment(self, master_address: str, master_port: int, visible_devices: str) -> dict[str, str]:
        """Return the environment variables of a worker with a process to itself.

        ``LOCAL_RANK`` is the index of the worker's device among those that it sees, as code for launchers expects it
        (``cuda:{LOCAL_RANK}``): 0 for a worker with devices, since it sees no others.
        """
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": "0" if self.devices else str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "LOCAL_SIZE": str(self.local_size),
            "MASTER_ADDR": master_address,
            "MASTER_PORT": str(master_port),
            "CUDA_VISIBLE_DEVICES": visible_devices,
        }


_current: ContextVar[WorkerContext] = ContextVar("roll_worker")


def worker_context() -> WorkerContext:
    """Return the place of the worker whose method (or constructor) is running.

    Raises:
        RuntimeError: Outside a worker.
    """
    try:
        return _current.get()
    except LookupError:
        message = "worker_context() was called outside a worker: only code that a WorkerGroup runs has a rank."
        raise RuntimeError(message) from None


@contextmanager
def entered(context: WorkerContext) -> Iterator[None]:
    """Let :func:`worker_context` return ``context`` meanwhile, also in tasks started here."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
