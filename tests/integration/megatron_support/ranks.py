"""Processes that form a gloo group and run test functions together, started once for many tests."""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

DEADLINE = 60.0
"""Seconds after which ranks that do not answer count as hung."""

START_DEADLINE = 120.0
"""The same for the first answer, before which they import everything."""

HEAVY = [
    "roll.strategies.megatron.train",
    "roll.pipelines.objective",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
    "transformers.models.llama.modeling_llama",
]
"""Imported once, in the process that ranks are forked from."""


class MegatronRanks:
    """``size`` ranks on the CPU; :meth:`run` calls a function on all of them and returns what each returned."""

    def __init__(self, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(HEAVY)
        self.closed = False
        self._deadline = START_DEADLINE
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, name: str, *arguments: Any) -> list[Any]:
        """Call the function ``name`` of ``megatron_support.runs`` on every rank: only they import Megatron-Core."""
        for pipe in self._pipes:
            pipe.send((name, arguments))
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
            raise AssertionError(f"{name}\n" + "\n".join(errors))
        return results

    def close(self) -> None:
        self.closed = True
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    from megatron_support import runs
    from megatron_support.cpu import pretend_cuda

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE))
    pretend_cuda()
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            # Whoever started this rank is gone.
            os._exit(0)
        try:
            pipe.send((None, getattr(runs, name)(*arguments)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))


@functools.cache
def _started() -> dict[int, MegatronRanks]:
    return {}


def ranks(size: int) -> MegatronRanks:
    """Return ``size`` ranks, started when first asked for, and again where a test has failed on them."""
    pools = _started()
    if size not in pools or pools[size].closed:
        pools[size] = MegatronRanks(size)
    return pools[size]
