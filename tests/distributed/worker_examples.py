"""Workers that the tests of this folder start."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from roll.distributed import WorkerCalls, worker_context


class Refused(ValueError):
    """Has a constructor that pickle does not call the right way by itself."""

    def __init__(self, what: str) -> None:
        super().__init__(f"refused {what}")
        self.what = what

    def __reduce__(self) -> Any:
        return type(self), (self.what,)


class Stubborn(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Worker:
    """Plain methods."""

    def __init__(self, start: int = 0, fails_on: int | None = None, closes_to: str | None = None) -> None:
        if worker_context().rank == fails_on:
            raise Refused("to be made")
        self.total = start
        self.closes_to = closes_to

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def rank(self) -> int:
        return worker_context().rank

    def about(self) -> tuple[int, str, int]:
        return os.getpid(), worker_context().name, worker_context().local_rank

    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def folder(self) -> str:
        return os.getcwd()

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    def echo(self, value: Any) -> Any:
        return value

    def keep(self, value: Any) -> None:
        self.kept = value

    def what_was_kept(self) -> Any:
        return self.kept

    def refuse(self, rank: int, what: str) -> str:
        if worker_context().rank == rank:
            raise Refused(what)
        return what

    def resist(self) -> None:
        raise Stubborn(1, 2)

    def lambda_result(self) -> Any:
        return (part for part in ())

    def sleep(self, rank: int, seconds: float) -> int:
        if worker_context().rank == rank:
            time.sleep(seconds)
        return rank

    def die(self, rank: int) -> None:
        if worker_context().rank == rank:
            os._exit(3)
        time.sleep(60)

    def copied(self, array: Any) -> bool:
        return bool(array.flags.owndata)

    def distance(self, batch: Any) -> tuple[Any, int]:
        """The column ``wide`` of a batch, and the elements from one row to the next."""
        return batch["wide"], batch["wide"].stride(0)

    def torch_imported(self) -> bool:
        return "torch" in sys.modules

    def close(self) -> None:
        if self.closes_to:
            with open(f"{self.closes_to}-{worker_context().rank}", "w") as file:
                file.write("closed")


class Service:
    """Coroutines: many calls at once."""

    def __init__(self) -> None:
        self.waiting = 0
        self.most = 0
        self.everybody = asyncio.Event()

    async def meet(self, count: int) -> int:
        """Return when ``count`` calls are here at once."""
        self.waiting += 1
        if self.waiting == count:
            self.everybody.set()
        await self.everybody.wait()
        return self.waiting

    async def linger(self) -> None:
        """Stay until cancelled."""
        self.waiting += 1
        try:
            await asyncio.sleep(60)
        finally:
            self.waiting -= 1

    async def here(self) -> int:
        return self.waiting

    async def rank(self) -> int:
        await asyncio.sleep(0)
        return worker_context().rank

    async def die(self) -> None:
        os._exit(4)


class Client:
    """Calls workers of another role."""

    def __init__(self, service: WorkerCalls) -> None:
        self.service = service

    async def ask(self, rank: int) -> int:
        return int(await self.service.one(rank, "rank"))

    async def kill(self, rank: int) -> None:
        await self.service.one(rank, "die")


class Rank:
    """A rank of a torch.distributed group."""

    def __init__(self, timeout: float = 60.0) -> None:
        from roll.distributed.process_group import init_process_group

        init_process_group("gloo", timeout=timeout)

    def all_reduce(self, value: float) -> float:
        import torch

        tensor = torch.tensor(value)
        torch.distributed.all_reduce(tensor)
        return float(tensor)

    def all_reduce_but(self, rank: int) -> float:
        """Let one rank die instead of taking part."""
        if worker_context().rank == rank:
            os._exit(5)
        return self.all_reduce(1.0)
