"""Which worker gets a piece of work, against a plain look at all of them; what that costs with very many."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from roll.distributed import WorkerDiedError
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.levels import generation_reports
from tests.lines import lines_run


class WaitingGroup:
    """**Not workers**: a piece of work ends when it is told to."""

    role = "train_env_manager"

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: list[tuple[int, asyncio.Future[None]]] = []

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given.append((rank, over))
        await over


async def begin(pool: WorkerPool) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(pool.call("play"))
    await asyncio.sleep(0)
    return task


def test_work_goes_to_the_first_of_the_workers_that_have_least_to_do() -> None:
    async def play(size: int, draws: random.Random) -> None:
        group = WaitingGroup(size)
        pool = WorkerPool(group)  # type: ignore[arg-type]
        tasks = []
        for _ in range(400):
            if group.given and draws.random() < 0.45:
                group.given.pop(draws.randrange(len(group.given)))[1].set_result(None)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                continue
            held = [rank for rank, _ in group.given]
            expected = min(range(size), key=lambda rank: (held.count(rank), rank))
            tasks.append(await begin(pool))
            assert group.given[-1][0] == expected
        for _, over in group.given:
            over.set_result(None)
        await asyncio.gather(*tasks)

    for seed in range(6):
        asyncio.run(play(1 + seed, random.Random(seed)))


def test_what_giving_work_costs_does_not_grow_with_the_number_of_workers() -> None:
    """Counted in lines of Python that run, which are the same on every machine."""

    async def cost(size: int) -> int:
        pool = WorkerPool(WaitingGroup(size))  # type: ignore[arg-type]
        tasks = [await begin(pool) for _ in range(2 * size)]
        with lines_run("pool.py") as lines:
            tasks += [await begin(pool) for _ in range(200)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return lines.counted

    assert asyncio.run(cost(1024)) < 3 * asyncio.run(cost(8))


class ReportingGroup:
    """**Not workers**: each reports once all were asked, and one has died."""

    role = "train_env_manager"

    def __init__(self, size: int, dead: int) -> None:
        self.size = size
        self._dead = dead
        self._all_asked = asyncio.Barrier(size)

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> dict[str, float]:
        assert method == "generation_metrics"
        await self._all_asked.wait()
        if rank == self._dead:
            raise WorkerDiedError(self.role, rank, f"rank {rank}", "it was killed")
        return {"requests": float(rank)}


def test_workers_are_asked_for_their_reports_at_the_same_time() -> None:
    async def ask() -> list[dict[str, float]]:
        async with asyncio.timeout(10):
            return await generation_reports(WorkerPool(ReportingGroup(5, dead=2)))  # type: ignore[arg-type]

    assert asyncio.run(ask()) == [{"requests": rank} for rank in (0.0, 1.0, 3.0, 4.0)]
