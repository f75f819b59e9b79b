"""Workers as Ray actors on this machine: calls, exceptions, deadlines, deaths. Real Ray, started once for the file."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from worker_examples import Client, Rank, Refused, Service, Worker

from roll.config import AgenticConfig
from roll.distributed import WorkerCallError, WorkerDiedError, WorkerGroup, WorkerSpec, WorkerTimeoutError
from roll.distributed.lent_memory import LENDER, Lender, Loan
from roll.distributed.sharding import shard

ray = pytest.importorskip("ray")

from roll.distributed.ray_cluster import RayCluster  # noqa: E402

pytestmark = pytest.mark.processes

CONFIG = AgenticConfig.model_validate(
    {
        "cluster": "ray",
        "actor_train": {"world_size": 2, "system_envs": {"ROLL_TEST_ROLE": "train"}},
        "actor_infer": {"world_size": 2},
        "reference": {"world_size": 2},
        "init_kl_coef": 0.1,
        "train_env_manager": {"env_groups": 4, "group_size": 2, "max_env_num_per_worker": 4},
        "rollout_batch_size": 8,
        "eval_steps": 0,
        "system_envs": {"ROLL_TEST_RUN": "all", "OMP_NUM_THREADS": "1"},
        "rpc_timeout": 60,
    }
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    connected = asyncio.run(RayCluster.connect(CONFIG))
    yield connected
    asyncio.run(connected.close())
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def pair(cluster: RayCluster) -> Iterator[WorkerGroup]:
    """Two workers that tests share; none may be left busy or dead."""
    group = asyncio.run(cluster.start("actor_train", WorkerSpec(cls=Worker)))
    yield group
    asyncio.run(group.close())


@pytest.fixture(scope="module")
def victims(cluster: RayCluster) -> Iterator[WorkerGroup]:
    """Two workers that tests may hang or kill, if they restart them."""
    group = asyncio.run(cluster.start("actor_infer", WorkerSpec(cls=Worker)))
    yield group
    asyncio.run(group.close())


@asynccontextmanager
async def started(cluster: RayCluster, role: str, spec: WorkerSpec) -> AsyncIterator[WorkerGroup]:
    group = await cluster.start(role, spec)
    try:
        yield group
    finally:
        await group.close()


def in_time(play: Callable[[], Awaitable[None]]) -> None:
    """Run ``play``; a hang ends after minutes, whatever else the machine does."""

    async def limited() -> None:
        await asyncio.wait_for(play(), 300)

    asyncio.run(limited())


def test_all_and_each_answer_in_order_of_rank(pair: WorkerGroup) -> None:
    async def play() -> None:
        assert pair.size == 2
        assert await pair.all("rank") == [0, 1]
        assert await pair.each("echo", [("for 0",), ("for 1",)]) == ["for 0", "for 1"]
        assert await pair.one(1, "rank") == 1
        # Rank 0 answers last, and is first all the same.
        assert await pair.all("sleep", 0, 0.2) == [0, 0]

    asyncio.run(play())


def test_calls_to_one_worker_run_in_the_order_in_which_they_were_made(pair: WorkerGroup) -> None:
    async def play() -> list[int]:
        return list(await asyncio.gather(*(pair.one(0, "add", 1) for _ in range(20))))

    first, *others = asyncio.run(play())
    assert others == list(range(first + 1, first + 20))


def test_each_wants_one_tuple_per_worker(pair: WorkerGroup) -> None:
    with pytest.raises(ValueError, match="actor_train.echo: 1 argument tuples for 2 workers"):
        asyncio.run(pair.each("echo", [("only one",)]))


def test_an_exception_keeps_its_type_and_says_which_worker_raised_it(pair: WorkerGroup) -> None:
    with pytest.raises(Refused, match="refused bread") as caught:
        asyncio.run(pair.all("refuse", 1, "bread"))
    assert caught.value.what == "bread"
    (note,) = caught.value.__notes__
    assert re.match(r"Raised by actor_train rank 1 \(pid \d+, node [\d.]+\) in refuse\.", note)
    assert "raise Refused(what)" in note


def test_an_exception_that_cannot_travel_is_told_about(pair: WorkerGroup) -> None:
    with pytest.raises(WorkerCallError, match="worker_examples.Stubborn: 1 and 2") as caught:
        asyncio.run(pair.one(0, "resist"))
    assert "actor_train rank 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(("method", "kind"), [("lambda_result", TypeError), ("no_such_method", AttributeError)])
def test_mistakes_in_a_call_are_exceptions_of_the_call(pair: WorkerGroup, method: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        asyncio.run(pair.one(0, method))
    assert asyncio.run(pair.one(0, "rank")) == 0


def test_arguments_that_cannot_travel_fail_before_the_call(pair: WorkerGroup) -> None:
    with pytest.raises(TypeError, match="pickle"):
        asyncio.run(pair.all("echo", threading.Lock()))


@pytest.mark.exhaustive
def test_a_failing_rank_is_reported_without_waiting_for_the_others(victims: WorkerGroup) -> None:
    async def play() -> None:
        slow = asyncio.create_task(victims.one(1, "sleep", 1, 30.0))
        await asyncio.sleep(0)
        with pytest.raises(Refused):
            await victims.all("refuse", 0, "at once")
        assert not slow.done()
        slow.cancel()
        await victims.restart(1)

    in_time(play)


def test_a_deadline_names_who_did_not_answer(victims: WorkerGroup) -> None:
    async def play() -> None:
        with pytest.raises(WorkerTimeoutError) as caught:
            await victims.all("sleep", 1, 20.0, timeout=1.0)
        expected = r"actor_infer rank 1 \(pid \d+, node [\d.]+\) did not answer sleep within 1 s"
        assert re.fullmatch(expected, str(caught.value))
        assert await victims.one(0, "rank") == 0
        await victims.restart(1)
        assert await victims.one(1, "rank") == 1

    in_time(play)


def test_the_timeout_of_the_group_is_the_default(pair: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "_rpc_timeout", 0.3)
    with pytest.raises(WorkerTimeoutError, match="within 0.3 s"):
        asyncio.run(pair.one(0, "sleep", 0, 2.0))


def test_a_dead_worker_is_noticed_at_once_and_can_be_made_again(victims: WorkerGroup) -> None:
    async def play() -> None:
        before = await victims.all("about")
        with pytest.raises(WorkerDiedError) as caught:  # not that it did not answer within the minute it has
            await victims.all("die", 1)
        assert (caught.value.role, caught.value.rank) == ("actor_infer", 1)
        assert f"actor_infer rank 1 (pid {before[1][0]}, node" in str(caught.value)
        assert "exit" in caught.value.cause
        with pytest.raises(WorkerDiedError, match="rank 1"):
            await victims.one(1, "rank")
        await victims.restart()
        after = await victims.all("about")
        assert [name for _, name, _ in after] == ["actor_infer-0", "actor_infer-1"]
        assert {pid for pid, _, _ in before}.isdisjoint(pid for pid, _, _ in after)

    in_time(play)


def test_a_call_that_is_running_when_its_worker_is_restarted_fails(victims: WorkerGroup) -> None:
    async def play() -> None:
        call = asyncio.create_task(victims.one(0, "sleep", 0, 60.0))
        await asyncio.sleep(0.2)
        await victims.restart(0)
        with pytest.raises(WorkerDiedError, match="actor_infer rank 0"):
            await call

    in_time(play)


@pytest.mark.exhaustive
def test_a_class_is_sent_to_the_cluster_once_however_many_workers_it_has(
    victims: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private.function_manager import FunctionActorManager

    sent: list[str] = []
    send = FunctionActorManager.export_actor_class

    def noted(self: FunctionActorManager, made: type, *args: object) -> None:
        sent.append(made.__name__)
        send(self, made, *args)

    monkeypatch.setattr(FunctionActorManager, "export_actor_class", noted)
    asyncio.run(victims.restart())
    asyncio.run(victims.restart())
    assert len(sent) <= 1


@pytest.mark.exhaustive
def test_a_constructor_that_fails_says_which_and_leaves_nothing_behind(cluster: RayCluster) -> None:
    async def play() -> None:
        with pytest.raises(Refused, match="refused to be made") as caught:
            await cluster.start("train_env_manager", WorkerSpec(cls=Worker, kwargs={"fails_on": 1}))
        assert "train_env_manager rank 1" in caught.value.__notes__[0]
        async with started(cluster, "train_env_manager", WorkerSpec(cls=Worker)) as group:
            assert await group.all("rank") == [0, 1]

    in_time(play)


@pytest.mark.exhaustive
def test_workers_have_their_own_environment_and_close_before_they_end(cluster: RayCluster, tmp_path: Path) -> None:
    async def play() -> None:
        # One variable that is set in a running process, and one that counts from its start.
        env = {"ROLL_TEST_RUN": "mine", "PYTHONROLLTEST": "1"}
        spec = WorkerSpec(cls=Worker, kwargs={"closes_to": str(tmp_path / "w")}, env=env)
        group = await cluster.start("train_env_manager", spec)
        for found in await group.all("environment", "ROLL_TEST_RUN", "PYTHONROLLTEST", "ROLL_TEST_ROLE"):
            assert found == env | {"ROLL_TEST_ROLE": None}
        await group.close()
        await group.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["w-0", "w-1"]
        with pytest.raises(WorkerDiedError, match="train_env_manager rank 0"):
            await group.one(0, "rank")

    in_time(play)


def test_a_role_is_started_once_and_must_be_of_the_run(cluster: RayCluster, pair: WorkerGroup) -> None:
    with pytest.raises(ValueError, match="workers of actor_train are running"):
        asyncio.run(cluster.start("actor_train", WorkerSpec(cls=Worker)))
    with pytest.raises(ValueError, match="no role 'critic': it has actor_train, actor_infer, reference"):
        asyncio.run(cluster.start("critic", WorkerSpec(cls=Worker)))


def test_workers_know_their_place(pair: WorkerGroup) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    first, second = asyncio.run(pair.all("environment", *names))
    assert {name: first[name] for name in names[:4]} == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (second["RANK"], second["LOCAL_RANK"]) == ("1", "1")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == (second["MASTER_ADDR"], second["MASTER_PORT"])
    assert int(first["MASTER_PORT"]) > 0


def test_environment_variables_come_from_the_run_and_the_role(pair: WorkerGroup) -> None:
    names = ("ROLL_TEST_RUN", "ROLL_TEST_ROLE", "CUDA_VISIBLE_DEVICES")
    assert asyncio.run(pair.one(0, "environment", *names)) == {
        "ROLL_TEST_RUN": "all",
        "ROLL_TEST_ROLE": "train",
        "CUDA_VISIBLE_DEVICES": "",
    }


def test_relative_paths_mean_the_same_in_workers(pair: WorkerGroup) -> None:
    assert asyncio.run(pair.one(0, "folder")) == os.getcwd()


@pytest.mark.parametrize("rows", [6, 200])
def test_rows_of_a_batch_are_read_where_ray_put_them(pair: WorkerGroup, rows: int) -> None:
    batch = TensorDict({"wide": torch.randn(rows, 1001)}, batch_size=[rows])
    parts = shard(batch, [1001] * rows, 2)

    async def play() -> None:
        answers = await pair.each("distance", [(part.sent,) for part in parts])
        for part, (wide, distance) in zip(parts, answers, strict=True):
            assert torch.equal(wide, part.batch["wide"])
            assert distance == 1008  # from one multiple of 64 bytes to the next: a copy has 1001

    asyncio.run(play())


def test_batches_arrive_as_they_were_and_are_not_copied(pair: WorkerGroup) -> None:
    batch = TensorDict(
        {
            "values": torch.arange(1_000_000, dtype=torch.float32).view(1000, 1000),
            "mask": torch.ones(1000, 1000, dtype=torch.bool),
            "half": torch.full((1000, 2), 1.5, dtype=torch.bfloat16),
            "every_other": torch.arange(4000).view(1000, 4)[:, ::2],
        },
        batch_size=[1000],
    )

    async def play() -> None:
        for back in await pair.all("echo", {"inside": [batch]}):
            received = back["inside"][0]
            assert received.batch_size == batch.batch_size
            for key, tensor in batch.items():
                assert received[key].dtype == tensor.dtype
                assert torch.equal(received[key], tensor)
        assert await pair.all("copied", np.zeros(1_000_000)) == [False, False]

    asyncio.run(play())


LARGE = 300_000


def large(value: float) -> np.ndarray:
    return np.full(LARGE, value)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[Loan]:
    """What this process lends."""
    loans: list[Loan] = []

    def noted(lender: Lender, *args: Any) -> Loan | None:
        loan = lend(lender, *args)
        loans.extend([] if loan is None else [loan])
        return loan

    lend = Lender.lend
    monkeypatch.setattr(Lender, "lend", noted)
    return loans


def test_large_values_are_lent_and_what_a_worker_keeps_is_not_written_to(pair: WorkerGroup, lent: list[Loan]) -> None:
    asyncio.run(pair.each("keep", [(large(1.5),), (large(2.5),)]))
    assert len(lent) == 2
    for round_ in range(4):
        answers = asyncio.run(pair.each("echo", [(large(round_),), (large(-round_),)]))
        assert [answer.mean() for answer in answers] == [round_, -round_]
        assert not any(answer.flags.writeable or answer.flags.owndata for answer in answers)
    assert len({loan.inode for loan in lent}) <= 2 + 4, "what came back is lent again"
    first = asyncio.run(pair.all("what_was_kept"))
    asyncio.run(pair.each("echo", [(large(7),), (large(8),)]))
    assert [kept.mean() for kept in first] == [1.5, 2.5], "nor is what the caller keeps"


def test_a_worker_that_cannot_open_lent_memory_is_sent_things_by_ray(
    pair: WorkerGroup, lent: list[Loan], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pair.calls()
    monkeypatch.setattr(Loan, "__reduce__", lambda loan: (Loan, (loan.pid, loan.descriptor, 1, loan.size, loan.spans)))
    for _ in range(3):
        answers = asyncio.run(calls.each("echo", [(large(1.5),), (large(2.5),)]))
        assert [answer.mean() for answer in answers] == [1.5, 2.5]
    assert len(lent) == 2, "each worker was tried once"
    assert not any(segment.loan in lent for segment in LENDER._away), "and what it could not open was taken back"


def test_scalars_and_empty_tensors_travel(pair: WorkerGroup) -> None:
    sent = (torch.tensor(2.5), torch.zeros(0, 3), torch.nn.Parameter(torch.ones(2)), "text", None)
    back = asyncio.run(pair.one(0, "echo", sent))
    assert (back[0].item(), back[1].shape, back[2].tolist(), back[3], back[4]) == (2.5, (0, 3), [1, 1], "text", None)


def test_calls_to_a_service_run_at_once_and_can_be_given_up(cluster: RayCluster) -> None:
    async def play() -> None:
        async with started(cluster, "train_env_manager", WorkerSpec(cls=Service)) as services:
            assert await asyncio.gather(*(services.one(0, "meet", 50) for _ in range(50))) == [50] * 50
            # A call that its caller gives up is cancelled where it runs.
            with pytest.raises(WorkerTimeoutError):
                await services.one(1, "linger", timeout=0.5)
            while await services.one(1, "here"):
                await asyncio.sleep(0.05)

    in_time(play)


@pytest.mark.exhaustive
def test_workers_of_one_role_call_those_of_another_and_find_them_after_a_restart(cluster: RayCluster) -> None:
    async def play() -> None:
        async with (
            started(cluster, "reference", WorkerSpec(cls=Service)) as services,
            started(cluster, "train_env_manager", WorkerSpec(cls=Client, args=(services.calls(),))) as clients,
        ):
            assert await clients.all("ask", 1) == [1, 1]
            with pytest.raises(WorkerDiedError, match="reference rank 1"):
                await clients.one(0, "kill", 1)
            with pytest.raises(WorkerDiedError, match="reference rank 1"):
                await clients.one(0, "ask", 1)
            await services.restart(1)
            assert await clients.one(0, "ask", 1) == 1
            # The other client has not heard of the death; its next call does.
            with pytest.raises(WorkerDiedError, match="reference rank 1"):
                await clients.one(1, "ask", 1)
            assert await clients.one(1, "ask", 1) == 1

    in_time(play)


@pytest.mark.exhaustive
def test_ranks_make_one_gloo_group_and_a_death_in_a_collective_ends_the_wait(cluster: RayCluster) -> None:
    async def play() -> None:
        async with started(cluster, "reference", WorkerSpec(cls=Rank)) as ranks:
            assert await ranks.each("all_reduce", [(1.5,), (2.0,)]) == [3.5, 3.5]
            with pytest.raises(WorkerDiedError, match="reference rank 1"):
                await ranks.all("all_reduce_but", 1)

    in_time(play)


def test_the_timeline_names_role_rank_and_method(cluster: RayCluster, pair: WorkerGroup, tmp_path: Path) -> None:
    async def play() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            await pair.all("rank")
            cluster.write_timeline(tmp_path / "timeline.json")
            if "actor_train-1.rank" in (tmp_path / "timeline.json").read_text():
                return
            await asyncio.sleep(0.5)
        raise AssertionError("the call is not in the timeline")

    in_time(play)
