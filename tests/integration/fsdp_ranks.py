"""Processes that form a gloo group and run test functions together, started once for many tests."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEADLINE = 60.0
"""Seconds after which ranks that do not answer count as hung."""

HEAVY = [
    "roll.strategies.fsdp.sharding",
    "roll.strategies.fsdp_train",
    "peft",
    "roll.pipelines.objective",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
]
"""Imported once, in the process that ranks are forked from."""


class RankPool:
    """``size`` ranks; :meth:`run` calls a function on all of them at once and returns what each returned."""

    def __init__(self, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(HEAVY)
        self.closed = False
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(*arguments)`` on every rank."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(DEADLINE):
                self.close()
                raise TimeoutError(f"rank {rank} did not return from {function.__name__} within {DEADLINE:.0f} s")
            error, result = pipe.recv()
            if error is not None:
                self.close()
                raise AssertionError(f"rank {rank}: {error}")
            results.append(result)
        return results

    def close(self) -> None:
        self.closed = True
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE))
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send((None, function(*arguments)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
