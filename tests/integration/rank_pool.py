"""Processes that form a gloo group and run test functions together, started once for many tests."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any

from tests.ports import free_port

DEADLINE = 60.0
"""Seconds after which ranks that do not answer count as hung."""

START_DEADLINE = 120.0
"""The same for the first answer, before which they import everything."""

HEAVY = (
    "roll.strategies.training.pytorch.sharding",
    "roll.strategies.training.pytorch.train",
    "deepspeed",
    "roll.strategies.training.deepspeed.train",
    "peft",
    "roll.pipelines.learning.objective",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
)
"""Imported once, in the process that ranks are forked from."""

Function = Callable[..., Any] | str
"""A function, or where it is (``module:name``), for those that only ranks should import."""


class RankPool:
    """``size`` ranks; :meth:`run` calls a function on all of them at once and returns what each returned.

    Args:
        size: How many.
        heavy: Modules to import before ranks are forked.
        prepare: Called first in every rank.
    """

    def __init__(self, size: int, heavy: Sequence[str] = HEAVY, prepare: str | None = None) -> None:
        port = free_port()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(heavy))
        self.closed = False
        self._deadline = START_DEADLINE
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port, prepare), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
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
            assert process.pid is not None
            os.kill(process.pid, number)

    def close(self) -> None:
        """Kill the ranks."""
        self.closed = True
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, size: int, port: int, prepare: str | None) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE))
    if prepare is not None:
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
