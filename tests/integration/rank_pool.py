"""Processes that form a gloo group and run test functions together, started once for many tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import Pipe, current_process, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from tests.ports import free_port
from tests.programs import WarmProgram, start

DEADLINE = 60.0
"""Seconds after which ranks that do not answer count as hung."""

START_DEADLINE = 120.0
"""The same for the first answer, before which they import everything."""

Function = Callable[..., Any] | str
"""A function, or where it is (``module:name``), for those that only ranks should import."""


Pool = TypeVar("Pool", bound="RankPool")


class RankPool:
    """``size`` ranks; :meth:`run` calls a function on all of them at once and returns what each returned.

    Args:
        size: How many.
        prepare: Where the function is that is called first in every rank.
    """

    def __init__(self, size: int, prepare: str | None = None) -> None:
        self.closed = False
        self._deadline = START_DEADLINE
        self._pipes: list[Connection] = []
        self._processes: list[WarmProgram] = []
        words = ["-c", "import rank_pool, sys; rank_pool.serve(sys.argv[1])", prepare or ""]
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        variables = {**os.environ, **group, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        for rank in range(size):
            ours, theirs = Pipe()
            with theirs:
                streams = [theirs.fileno(), 2, 2]
                self._processes.append(start("worker", words, Path.cwd(), {**variables, "RANK": str(rank)}, streams))
            ours.send_bytes(current_process().authkey)
            self._pipes.append(ours)
        util.Finalize(None, self.close, exitpriority=0)  # what is stopped does not end when it is asked to

    def run(self, function: Function, *arguments: Any) -> list[Any]:
        """Call ``function(*arguments)`` on every rank; what went wrong on any of them is in the error."""
        self._signal(signal.SIGCONT)
        for pipe in self._pipes:
            pipe.send((function, arguments))
        results, errors = [], []
        for rank, pipe in enumerate(self._pipes):
            try:
                error, result = pipe.recv() if pipe.poll(5.0 if errors else self._deadline) else ("no answer", None)
            except EOFError:
                error, result = "the process ended", None
            if error is not None:
                errors.append(f"rank {rank}: {error}")
            results.append(result)
        self._deadline = DEADLINE
        if errors:
            self.close()
            raise AssertionError(f"{function}\n" + "\n".join(errors))
        self._signal(signal.SIGSTOP)
        return results

    def _signal(self, number: signal.Signals) -> None:
        """Stop the ranks, or let them go on: gloo's threads look around all the time, for half a core in the end."""
        for process in self._processes:
            if process.poll() is None:
                os.kill(process.pid, number)

    def close(self) -> None:
        """Kill the ranks."""
        self.closed = True
        for process in self._processes:
            process.kill()
            process.wait()


def shared(kind: Callable[[int], Pool], size: int) -> Pool:
    """Return ``size`` ranks for the tests of a group, started when first asked for, and again where a test failed."""
    from tests.sharing import shared_by_group  # here: ranks import this file, and need no pytest

    started = shared_by_group(_started)
    if (kind, size) not in started or started[kind, size].closed:
        started[kind, size] = kind(size)
    found: Pool = started[kind, size]
    return found


@contextmanager
def _started() -> Iterator[dict[tuple[Callable[[int], RankPool], int], Any]]:
    pools: dict[tuple[Callable[[int], RankPool], int], Any] = {}
    yield pools
    for pool in pools.values():
        pool.close()


def serve(prepare: str) -> None:
    """Be a rank: call what is sent through standard input, until nobody holds its other end."""
    import torch
    import torch.distributed as dist

    pipe = Connection(os.dup(0))
    current_process().authkey = pipe.recv_bytes()  # tensors come and go by connections of their own
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE))
    if prepare:
        _found(prepare)()
    gc.freeze()
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            # Whoever started this rank is gone.
            os._exit(0)
        try:
            pipe.send((None, _found(function)(*arguments)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
        # Groups of ranks that a test has left have threads, hundreds in the end, which never sleep for long.
        gc.collect()


def _found(function: Function) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
