"""The Ray actor around one worker: it makes the worker, calls its methods, and carries its exceptions home."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import random
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray import cloudpickle

from roll.common.ending import end_quickly
from roll.common.proxies import ask_this_machine_itself
from roll.config.process import settle_allocator, settle_collector
from roll.distributed.context import WorkerContext, entered
from roll.distributed.errors import WorkerCallError, WorkerError
from roll.distributed.lent_memory import Neighbour
from roll.distributed.profiling import profiled_here
from roll.distributed.ray_post import Answer, Letter, Mailroom
from roll.distributed.transport import Packed, pack, unpack


@dataclass(frozen=True, slots=True)
class Home:
    """Where an actor lives.

    Attributes:
        pid: Its process.
        address: Its machine.
        port: A port that was free there a moment ago.
        neighbour: The process, for those that share memory with it.
    """

    pid: int
    address: str
    port: int
    neighbour: Neighbour | None


def _free_port() -> int:
    """Return a port that nobody listens on.

    It is used seconds later, so it is none that the system gives to outgoing connections meanwhile (32768 and above,
    where Linux is left as it is), nor one of those that Ray keeps for its workers (below 20000).
    """
    choices = random.SystemRandom().sample(range(20_000, 32_000), 100)
    for port in choices:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise WorkerError("no port between 20000 and 31999 is free on this machine: something keeps them all open.")


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """What of the driver a worker takes over, so that the same modules and relative paths work in both.

    Attributes:
        folder: Working directory.
        module_paths: ``sys.path``.
    """

    folder: str
    module_paths: tuple[str, ...]

    @classmethod
    def here(cls) -> DriverPlace:
        """Return those of this process."""
        return cls(os.getcwd(), tuple(path or os.getcwd() for path in sys.path))

    def enter(self) -> None:
        """Take them over, as far as the folders are on this machine."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        self.share_modules()

    def share_modules(self) -> None:
        """Find the driver's modules, as far as they are on this machine."""
        sys.path += [path for path in self.module_paths if path not in sys.path and Path(path).exists()]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way home.

    Attributes:
        pickled: The exception.
        trace: Its traceback as text.
    """

    pickled: bytes
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Pack ``error``, or a :class:`WorkerCallError` about it where it cannot be carried."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps(error)
            intact = type(pickle.loads(pickled)) is type(error)
        except Exception:  # whatever an exception's own constructor raises when it is made again
            intact = False
        if not intact:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            pickled = cloudpickle.dumps(WorkerCallError(kind, str(error)))
        return cls(pickled, trace)

    def exception(self, worker: str, method: str) -> BaseException:
        """Return the exception, with notes that say where it comes from."""
        error: BaseException = pickle.loads(self.pickled)
        error.add_note(f"Raised by {worker} in {method}.\nThere:\n{self.trace.rstrip()}")
        return error


_FETCHED: Final = 3600.0
"""Seconds after which the answer to a call that was given up is known to be wanted by nobody."""


def _answer(value: Any, caller: Neighbour | None) -> Packed:
    packed = pack(value)
    return packed if caller is None else packed.lent(caller, _FETCHED)


class _Host:
    """What both kinds of host do."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._worker: Any = None

    def __repr__(self) -> str:
        # Ray writes this before each line that the worker prints.
        return self._context.name

    def home(self) -> Home:
        """Return where this actor lives."""
        return Home(os.getpid(), ray.util.get_node_ip_address(), _free_port(), Neighbour.here())

    def _make(self, spec: bytes, driver: DriverPlace, environment: dict[str, str]) -> None:
        """Make the worker. Its class is unpickled last, since its modules may read what is set before."""
        os.environ.update(environment)
        ask_this_machine_itself()
        settle_allocator()
        driver.enter()
        cls, args, kwargs = pickle.loads(spec)
        self._worker = cls(*args, **kwargs)
        settle_collector()
        end_quickly()

    def _function(self, method: str) -> Any:
        if self._worker is None:
            raise WorkerError(f"{self._context.role} rank {self._context.rank} is still being made.")
        return profiled_here(method) or getattr(self._worker, method)


class Host(_Host):
    """Runs a worker whose methods are plain: one call after the other."""

    def make(self, spec: bytes, driver: DriverPlace, environment: dict[str, str]) -> Failure | None:
        """Make the worker."""
        with entered(self._context):
            try:
                self._make(spec, driver, environment)
            except Exception as error:
                return Failure.of(error)
            return None

    def call(self, method: str, args: Packed, caller: Neighbour | None = None) -> Packed | Failure:
        """Call a method of the worker.

        Args:
            method: Its name.
            args: Its arguments.
            caller: Who can open memory of this process for the answer.
        """
        with entered(self._context):
            try:
                return _answer(self._function(method)(*unpack(args)), caller)
            except Exception as error:
                return Failure.of(error)

    def close(self) -> None:
        """Let the worker close."""
        with entered(self._context):
            if hasattr(self._worker, "close"):
                result = self._worker.close()
                if inspect.isawaitable(result):
                    asyncio.run(_finish(result))


class AsyncHost(_Host):
    """Runs a worker whose methods are coroutines: many calls at once in one event loop."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._made = asyncio.Event()
        self._mailroom = Mailroom(self.call)

    async def home(self) -> Home:  # type: ignore[override]
        """Return where this actor lives."""
        return super().home()

    async def make(self, spec: bytes, driver: DriverPlace, environment: dict[str, str]) -> Failure | None:
        """Make the worker, inside the event loop in which it will work."""
        with entered(self._context):
            try:
                self._make(spec, driver, environment)
                return None
            except Exception as error:
                return Failure.of(error)
            finally:
                self._made.set()

    async def call(self, method: str, args: Packed, caller: Neighbour | None = None) -> Packed | Failure:
        """Call a method of the worker, as :meth:`Host.call`; one that comes early waits until the worker is made."""
        await self._made.wait()
        with entered(self._context):
            try:
                result = self._function(method)(*unpack(args))
                return _answer(await result if inspect.isawaitable(result) else result, caller)
            except Exception as error:
                return Failure.of(error)

    async def deliver(self, caller: str, letters: Sequence[Letter], cancelled: Sequence[int]) -> None:
        """Begin calls that came together, and cancel earlier ones; :meth:`collect` gives the answers."""
        self._mailroom.deliver(caller, letters, cancelled)

    async def collect(self, caller: str) -> list[tuple[int, Answer]]:
        """Return the answers to a caller's calls as soon as there are some."""
        return await self._mailroom.collect(caller)

    async def close(self) -> None:
        """Cancel what is running and let the worker close."""
        self._mailroom.close()
        with entered(self._context):
            if hasattr(self._worker, "close"):
                result = self._worker.close()
                if inspect.isawaitable(result):
                    await result


async def _finish(awaitable: Any) -> None:
    await awaitable
