"""Workers in this process: the same calls, the same errors, and objects that can be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from worker_examples import Client, Rank, Refused, Service, Worker

from roll.config import AgenticConfig
from roll.distributed import (
    LocalCluster,
    LocalGroup,
    WorkerDiedError,
    WorkerSpec,
    WorkerTimeoutError,
    open_cluster,
    plan_placement,
)
from roll.distributed.context import worker_context
from roll.distributed.worker_group import gather_by

CONFIG = AgenticConfig.model_validate({"actor_infer": {"world_size": 2}, "eval_steps": 0})


def group(spec: WorkerSpec, role: str = "actor_infer", timeout: float = 5.0, threads: bool = False) -> LocalGroup:
    return LocalGroup(plan_placement(CONFIG).roles[role], spec, rpc_timeout=timeout, threads=threads)


def test_calls_answer_in_order_of_rank() -> None:
    async def play() -> None:
        workers = group(WorkerSpec(cls=Worker, args=(10,)))
        assert await workers.all("rank") == [0, 1]
        assert await workers.each("add", [(1,), (2,)]) == [11, 12]
        assert await workers.one(1, "add", 1) == 13
        assert workers.worker(1).total == 13
        with pytest.raises(ValueError, match="1 argument tuples for 2 workers"):
            await workers.each("add", [(1,)])

    asyncio.run(play())


def test_arguments_are_the_very_objects() -> None:
    given: list[int] = []
    assert asyncio.run(group(WorkerSpec(cls=Worker)).one(0, "echo", given)) is given


def test_an_exception_says_which_worker_raised_it() -> None:
    with pytest.raises(Refused) as caught:
        asyncio.run(group(WorkerSpec(cls=Worker)).all("refuse", 1, "bread"))
    assert caught.value.__notes__ == ["Raised by actor_infer rank 1 in refuse."]
    with pytest.raises(Refused) as caught:
        group(WorkerSpec(cls=Worker, kwargs={"fails_on": 1}))
    assert caught.value.__notes__ == ["Raised by actor_infer rank 1 while it was made."]


def test_services_know_their_rank_while_many_calls_run_at_once() -> None:
    async def play() -> None:
        services = group(WorkerSpec(cls=Service))
        assert await services.all("rank") == [0, 1]
        assert await asyncio.gather(*(services.one(0, "meet", 5) for _ in range(5))) == [5] * 5
        clients = group(WorkerSpec(cls=Client, args=(services.calls(),)), role="actor_train")
        assert await clients.one(0, "ask", 1) == 1

    asyncio.run(play())


def test_a_deadline_counts_for_coroutines_and_with_threads_for_plain_methods() -> None:
    async def play() -> None:
        with pytest.raises(WorkerTimeoutError, match=r"actor_infer rank 1 \(this process\) did not answer meet within"):
            await group(WorkerSpec(cls=Service)).one(1, "meet", 2, timeout=0.05)
        with pytest.raises(WorkerTimeoutError, match="rank 0 .* did not answer sleep within 0.05 s"):
            await group(WorkerSpec(cls=Worker), threads=True, timeout=0.05).all("sleep", 0, 0.3)

    asyncio.run(play())


def test_restart_makes_new_workers_and_closes_the_old(tmp_path: object) -> None:
    async def play() -> None:
        workers = group(WorkerSpec(cls=Worker, kwargs={"closes_to": f"{tmp_path}/w"}))
        old = [workers.worker(rank) for rank in range(2)]
        await workers.restart(1)
        assert [workers.worker(rank) is old[rank] for rank in range(2)] == [True, False]
        assert open(f"{tmp_path}/w-1").read() == "closed"

    asyncio.run(play())


def test_torch_distributed_is_refused_with_the_way_out() -> None:
    with pytest.raises(RuntimeError, match="actor_infer rank 0 has no process of its own.*use cluster=ray"):
        group(WorkerSpec(cls=Rank))


def test_outside_a_worker_there_is_no_rank() -> None:
    with pytest.raises(RuntimeError, match="outside a worker"):
        worker_context()


def test_open_cluster_without_ray_closes_all_roles(tmp_path: object) -> None:
    async def play() -> None:
        async with open_cluster(CONFIG) as cluster:
            assert isinstance(cluster, LocalCluster)
            assert set(cluster.plan.roles) == {"actor_train", "actor_infer", "train_env_manager"}
            workers = await cluster.start("actor_infer", WorkerSpec(cls=Worker, kwargs={"closes_to": f"{tmp_path}/w"}))
            with pytest.raises(ValueError, match="workers of actor_infer are running"):
                await cluster.start("actor_infer", WorkerSpec(cls=Worker))
            assert workers.size == 2
        assert open(f"{tmp_path}/w-0").read() == "closed"

    asyncio.run(play())


def test_a_death_explains_what_the_peers_of_the_dead_raise() -> None:
    async def fail(seconds: float, error: Exception) -> None:
        await asyncio.sleep(seconds)
        raise error

    async def play(*calls: Coroutine[Any, Any, None]) -> None:
        await gather_by(calls, role="actor_train", who=["rank 0", "rank 1", "rank 2"], what="train_step", timeout=10)

    closed, died = RuntimeError("connection closed by peer"), WorkerDiedError("actor_train", 1, "rank 1", "killed")
    with pytest.raises(WorkerDiedError) as caught:
        asyncio.run(play(fail(0, closed), fail(0.1, died), fail(0.05, RuntimeError("closed too"))))
    assert caught.value.__cause__ is closed
    # A mistake of one rank is told at once: whoever waited for the others would run into the time limit.
    with pytest.raises(ValueError, match="mistake"):
        asyncio.run(play(fail(0, ValueError("mistake")), fail(600, died), fail(600, died)))
