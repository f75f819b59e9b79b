"""What can go wrong with a worker, apart from the exceptions that it raises itself."""

from __future__ import annotations

from collections.abc import Sequence


class WorkerError(RuntimeError):
    """A worker did not do what it was asked to do."""


class WorkerTimeoutError(WorkerError):
    """Workers did not answer in time. They may still be at it.

    Attributes:
        role: Name of the role.
        workers: Description of each worker that did not answer.
        method: What it was asked to do.
        timeout: Seconds that it had.
    """

    def __init__(self, role: str, workers: Sequence[str], method: str, timeout: float) -> None:
        super().__init__(role, tuple(workers), method, timeout)
        self.role, self.workers, self.method, self.timeout = role, tuple(workers), method, timeout

    def __str__(self) -> str:
        verb = "did not answer"
        return f"{self.role} {' and '.join(self.workers)} {verb} {self.method} within {self.timeout:g} s"


class WorkerDiedError(WorkerError):
    """The process of a worker, or its machine, is gone.

    Attributes:
        role: Name of the role.
        rank: Rank of the worker.
        worker: Its description, with process and machine.
        cause: What is known about the reason.
    """

    def __init__(self, role: str, rank: int, worker: str, cause: str) -> None:
        super().__init__(role, rank, worker, cause)
        self.role, self.rank, self.worker, self.cause = role, rank, worker, cause

    def __str__(self) -> str:
        return f"{self.role} {self.worker} died: {self.cause}"


class WorkerCallError(WorkerError):
    """A worker raised an exception that cannot be carried to another process; this one tells about it.

    Attributes:
        kind: Type of the exception (``package.module.Name``).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
