"""Requests to an engine in another process: real Ray and real clients; only the engine is a fake."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from fake_engines import FakeEngineWorker, Log, Refused, names, request

from roll.config import AgenticConfig
from roll.distributed import WorkerCallError, WorkerGroup, WorkerSpec
from roll.generation import Completion
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.replicas import ReplicaDown
from roll.workers.engine_client import Engines, RemoteEngine

ray = pytest.importorskip("ray")

from ray import cloudpickle  # noqa: E402

from roll.distributed import ray_post  # noqa: E402
from roll.distributed.ray_cluster import RayCluster  # noqa: E402

pytestmark = pytest.mark.processes

CONFIG = AgenticConfig.model_validate(
    {
        "cluster": "ray",
        "actor_infer": {"world_size": 2},
        "train_env_manager": {"env_groups": 1, "group_size": 1},
        "rollout_batch_size": 1,
        "eval_steps": 0,
        "system_envs": {"OMP_NUM_THREADS": "1"},
        "rpc_timeout": 60,
    }
)
STEADY, VICTIM = 0, 1


@pytest.fixture(scope="module")
def engines() -> Iterator[WorkerGroup]:
    """Two engines: one that tests leave as it is, one that they may kill if they make it again."""
    cluster = asyncio.run(RayCluster.connect(CONFIG))
    try:
        yield asyncio.run(cluster.start("actor_infer", WorkerSpec(cls=FakeEngineWorker)))
    finally:
        asyncio.run(cluster.close())


def client(engines: WorkerGroup, rank: int = STEADY) -> RemoteEngine:
    """Return a client as a worker in another process gets it."""
    handed_over: Engines = cloudpickle.loads(cloudpickle.dumps(Engines(engines.calls())))
    made = handed_over.client(rank)
    assert isinstance(made, RemoteEngine)
    return made


async def log_of(engines: WorkerGroup, rank: int = STEADY) -> Log:
    log: Log = await engines.one(rank, "log")
    return log


def in_time(play: Callable[[], Awaitable[None]], seconds: float = 300.0) -> None:
    async def limited() -> None:
        await asyncio.wait_for(play(), seconds)

    asyncio.run(limited())


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():
        await asyncio.sleep(0.02)


async def outcomes(calls: list[Any]) -> list[Completion | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_every_request_is_answered_once(engines: WorkerGroup) -> None:
    async def play() -> None:
        await engines.one(STEADY, "forget")
        engine, count = client(engines), 300
        wanted = [engine.generate(request(name, number)) for number, name in enumerate(names("answer", count))]
        assert [answer.token_ids for answer in await asyncio.gather(*wanted)] == [[number] for number in range(count)]
        log = await log_of(engines)
        assert sorted(log.begun) == sorted(names("answer", count))

    in_time(play)


def test_an_error_reaches_its_own_request_and_no_other(engines: WorkerGroup) -> None:
    async def play() -> None:
        engine = client(engines)
        wanted = ["answer 1", "fail 2", "answer 3", "resist 4", "answer 5"]
        one, two, three, four, five = await outcomes([engine.generate(request(name)) for name in wanted])
        assert all(isinstance(answer, Completion) for answer in (one, three, five))
        assert isinstance(two, Refused)
        assert str(two) == "refused fail 2"
        assert "raise Refused" in two.__notes__[0]
        # One that cannot be pickled is told about, and its neighbours do not suffer.
        assert isinstance(four, WorkerCallError)
        assert "fake_engines.Stubborn: 1 and 2" in str(four)
        assert (await engine.generate(request("answer 6"))).finish_reason == "stop"

    in_time(play)


def test_a_request_that_cannot_travel_is_told_so_and_the_next_one_works(engines: WorkerGroup) -> None:
    async def play() -> None:
        engine = client(engines)
        with pytest.raises(TypeError, match="pickle"):
            await engine.generate(request("answer", threading.Lock()))  # type: ignore[arg-type]
        assert (await engine.generate(request("answer"))).finish_reason == "stop"

    in_time(play)


def test_a_request_that_the_engine_cancels_by_itself_is_not_waited_for(engines: WorkerGroup) -> None:
    async def play() -> None:
        with pytest.raises(ReplicaDown, match="cancelled generate"):
            await client(engines).generate(request("cancel 1"))

    in_time(play)


def test_an_aborted_request_is_answered_with_what_it_has(engines: WorkerGroup) -> None:
    async def play() -> None:
        await engines.one(STEADY, "forget")
        engine = client(engines)
        waiting = [asyncio.create_task(engine.generate(request(name, 7))) for name in names("wait", 20)]
        await until(lambda: _begun(engines, 20))
        await asyncio.gather(*(engine.abort(name) for name in names("wait", 20)))
        answers = await asyncio.gather(*waiting)
        assert {(answer.finish_reason, *answer.token_ids) for answer in answers} == {("abort", 7)}
        log = await log_of(engines)
        assert sorted(log.aborted) == sorted(names("wait", 20))

    in_time(play)


async def _begun(engines: WorkerGroup, count: int) -> bool:
    return len((await log_of(engines)).begun) >= count


def test_an_abort_never_overtakes_its_request(engines: WorkerGroup) -> None:
    async def play() -> None:
        engine = client(engines)
        waiting = asyncio.create_task(engine.generate(request("wait in flight")))
        await asyncio.sleep(0)
        await engine.abort("wait in flight")
        assert (await waiting).finish_reason == "abort"

    in_time(play)


def test_a_cancelled_request_is_over_at_the_engine(engines: WorkerGroup) -> None:
    async def play() -> None:
        engine = client(engines)
        waiting = asyncio.create_task(engine.generate(request("wait for nobody")))
        await until(lambda: _runs(engines, "wait for nobody"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: _ended(engines, "wait for nobody"))
        assert (await engine.generate(request("answer", 4))).token_ids == [4]

    in_time(play)


async def _runs(engines: WorkerGroup, name: str) -> bool:
    return name in (await log_of(engines)).running


async def _ended(engines: WorkerGroup, name: str) -> bool:
    return not await _runs(engines, name)


def test_released_sessions_are_forgotten_soon_and_nobody_waits_for_it(engines: WorkerGroup) -> None:
    async def play() -> None:
        await engines.one(STEADY, "forget")
        engine = client(engines)
        with pytest.raises(StopIteration):
            engine.release("first").send(None)  # it ends without waiting for anything
        await until(lambda: _released(engines, "first"))

    in_time(play)


async def _released(engines: WorkerGroup, session: str) -> bool:
    return session in (await log_of(engines)).released


def test_two_clients_do_not_see_each_others_answers(engines: WorkerGroup) -> None:
    async def play() -> None:
        one, other = client(engines), client(engines)
        # The same names on purpose: what tells them apart is whose they are.
        wanted = [(one, 1), (other, 2)] * 20
        calls = [engine.generate(request(f"soon {pair // 2}", number)) for pair, (engine, number) in enumerate(wanted)]
        assert [answer.token_ids for answer in await asyncio.gather(*calls)] == [[number] for _, number in wanted]

    in_time(play)


def test_a_dead_engine_fails_all_who_wait_and_old_and_new_clients_find_the_next_one(engines: WorkerGroup) -> None:
    async def play() -> None:
        engine, bystander = client(engines, VICTIM), client(engines, VICTIM)
        waiting = [asyncio.create_task(engine.generate(request(name))) for name in names("wait", 10)]
        waiting.append(asyncio.create_task(bystander.generate(request("wait too"))))
        await until(lambda: _begun_at(engines, VICTIM, 11))
        with pytest.raises(ReplicaDown, match="actor_infer rank 1 .* died"):
            await engine.generate(request("die"))
        assert {type(answer) for answer in await outcomes(waiting)} == {ReplicaDown}
        # Whoever ends a request or a session there gets what they want.
        await engine.abort("wait 1")
        await engine.release("session")
        with pytest.raises(ReplicaDown):
            await engine.generate(request("answer"))
        await engines.restart(VICTIM)
        for found in (client(engines, VICTIM), engine, bystander):
            assert (await found.generate(request("answer", 5))).token_ids == [5]

    in_time(play)


async def _begun_at(engines: WorkerGroup, rank: int, count: int) -> bool:
    return len((await log_of(engines, rank)).begun) >= count


def test_a_scheduler_that_is_given_the_next_engine_serves_what_the_dead_one_had(engines: WorkerGroup) -> None:
    async def play() -> None:
        handed_over = Engines(engines.calls())
        scheduler = GenerationScheduler([handed_over.client(VICTIM)])
        asked = [asyncio.ensure_future(scheduler.generate(request(name, 1))) for name in names("soon", 5)]
        await asyncio.sleep(0.1)
        await engines.restart(VICTIM)
        scheduler.replace(0, handed_over.client(VICTIM))
        assert {answer.finish_reason for answer in await asyncio.gather(*asked)} == {"stop"}

    in_time(play)


def test_an_engine_that_hangs_is_down_after_the_timeout(engines: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_post, "POLL_SECONDS", 0.5)
    monkeypatch.setattr(ray_post, "SLACK_SECONDS", 0.5)

    async def play() -> None:
        engine = client(engines, VICTIM)
        monkeypatch.setattr(engine._calls, "_rpc_timeout", 1.0)
        waiting = [asyncio.create_task(engine.generate(request(name))) for name in ("wait 1", "hang", "wait 2")]
        answers = await outcomes(waiting)
        assert {type(answer) for answer in answers} == {ReplicaDown}
        assert "within 1 s" in str(answers[0])
        await engines.restart(VICTIM)

    in_time(play)
