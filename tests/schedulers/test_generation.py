"""Requests over several replicas, in simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from scheduler_fakes import FakeReplica, call
from virtual_time import Deadlock, run_in_virtual_time

from roll.config import AgenticConfig
from roll.generation import Completion, GenerationRequest
from roll.schedulers.generation import GenerationScheduler
from roll.schedulers.replicas import ReplicaDown


def now() -> float:
    return asyncio.get_running_loop().time()


def scheduler(*replicas: FakeReplica, **options: Any) -> GenerationScheduler:
    return GenerationScheduler(replicas, clock=now, **options)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return run_in_virtual_time(main)


def slow_when_long(request: GenerationRequest) -> float:
    return float(request.sampling.max_new_tokens)


def test_simulated_time_jumps_and_finds_deadlocks() -> None:
    async def sleeps() -> float:
        await asyncio.sleep(3600)
        return now()

    assert run(sleeps()) == pytest.approx(3600)

    async def waits_forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(waits_forever())


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_replicas_are_kept_full_and_never_fuller_than_their_limit(limit: int) -> None:
    replicas = [FakeReplica(slow_when_long) for _ in range(3)]

    async def main() -> float:
        generate = scheduler(*replicas, max_running_requests=limit).generate
        await asyncio.gather(*(generate(call(f"r{i}", tokens=1 + i * 7 % 11)) for i in range(100)))
        return now()

    seconds = run(main())
    assert [replica.most_running for replica in replicas] == [limit] * 3
    assert sorted(i for replica in replicas for i in replica.ids) == sorted(f"r{i}" for i in range(100))
    work = sum(1 + i * 7 % 11 for i in range(100)) / (3 * limit)
    assert work <= seconds <= work + 11, "no place is empty while a request waits"


def test_new_trajectories_go_to_the_least_loaded_replica_and_stay_there() -> None:
    replicas = [FakeReplica(slow_when_long) for _ in range(4)]

    async def episode(generate: Any, name: str) -> None:
        for turn in range(5):
            await generate(call(f"{name}/{turn}", name, tokens=1 + (len(name) + turn) % 3))
            await asyncio.sleep(0.5)

    async def main() -> None:
        generate = scheduler(*replicas).generate
        await asyncio.gather(*(episode(generate, f"e{i}") for i in range(20)))

    run(main())
    homes = [{request.session for request in replica.seen} for replica in replicas]
    assert [len(home) for home in homes] == [5, 5, 5, 5]
    assert len(set.union(*homes)) == 20, "no trajectory was at two replicas"


def test_a_trajectory_leaves_a_full_replica_for_an_idle_one_and_both_forget_it() -> None:
    first, second = FakeReplica(slow_when_long), FakeReplica(slow_when_long)

    async def main() -> None:
        requests = scheduler(first, second, max_running_requests=1)
        generate = requests.generate
        await generate(call("a/0", "a"))
        blockers = [asyncio.create_task(generate(call(f"b{tokens}", tokens=tokens))) for tokens in (1, 50)]
        await asyncio.sleep(2)
        assert "b50" in first.running and not second.running
        await generate(call("a/1", "a"))
        await requests.release("a")
        await asyncio.gather(*blockers)

    run(main())
    assert first.ids == ["a/0", "b50"] and second.ids == ["b1", "a/1"]
    assert first.released == second.released == ["a"]


def test_a_place_goes_to_those_whose_prefix_is_there_before_it_goes_to_strangers() -> None:
    replicas = [FakeReplica(slow_when_long), FakeReplica(slow_when_long)]

    async def episode(generate: Any, name: str) -> None:
        for turn in range(6):
            await generate(call(f"{name}/{turn}", name, tokens=1 + (int(name) * 5 + turn) % 4))

    async def main() -> None:
        generate = scheduler(*replicas, max_running_requests=4).generate
        await asyncio.gather(*(episode(generate, str(i)) for i in range(40)))

    run(main())
    turns = Counter((request.session, rank) for rank, replica in enumerate(replicas) for request in replica.seen)
    moved = sum(1 for session in range(40) if len([1 for rank in (0, 1) if turns[str(session), rank]]) == 2)
    assert moved <= 4, "with both replicas full, only the end of the run moves trajectories"


@pytest.mark.parametrize("reverse", [False, True])
def test_waiting_requests_are_served_by_priority_and_else_by_the_age_of_their_trajectory(reverse: bool) -> None:
    engine = FakeReplica()

    async def main() -> None:
        generate = scheduler(engine, max_running_requests=1).generate
        await generate(call("old/0", "old"))
        first = asyncio.create_task(generate(call("blocker", None)))
        await asyncio.sleep(0)
        waiting = [("late", None, 7), ("x/0", "x", 5), ("y/0", "y", 5), ("old/1", "old", 5), ("early", None, 1)]
        waiting = waiting[::-1] if reverse else waiting
        tasks = []
        for name, session, priority in waiting:
            tasks.append(asyncio.create_task(generate(call(name, session, priority=priority))))
            await asyncio.sleep(0)
        await asyncio.gather(first, *tasks)

    run(main())
    middle = ["y/0", "x/0"] if reverse else ["x/0", "y/0"]
    assert engine.ids == ["old/0", "blocker", "early", "old/1", *middle, "late"]


def test_long_requests_wait_no_longer_than_short_ones() -> None:
    engine = FakeReplica(slow_when_long)
    begun: dict[str, float] = {}

    def seconds(request: GenerationRequest) -> float:
        begun[request.request_id] = now()
        return slow_when_long(request)

    engine.seconds = seconds

    async def main() -> None:
        generate = scheduler(engine, max_running_requests=4).generate
        await asyncio.gather(*(generate(call(f"r{i}", tokens=60 if i % 2 else 2)) for i in range(60)))

    run(main())
    assert list(begun) == [f"r{i}" for i in range(60)]


def test_cancelling_frees_the_place_and_aborts_at_the_replica() -> None:
    engine = FakeReplica()

    async def main() -> float:
        requests = scheduler(engine, max_running_requests=1)
        generate = requests.generate
        running, waiting, granted, last = (asyncio.create_task(generate(call(name))) for name in "abcd")
        await asyncio.sleep(0.5)
        waiting.cancel()
        running.cancel()
        await asyncio.sleep(0)
        # By now the place is granted to c, which is cancelled before it wakes up to take it.
        granted.cancel()
        await asyncio.wait([running, waiting, granted])
        assert (await last).finish_reason == "stop"
        assert requests.metrics()["queue"] == 0 == requests.metrics()["running"]
        return now()

    assert run(main()) == pytest.approx(1.5)
    assert engine.ids == ["a", "d"] and engine.aborted == ["a"]


def test_a_request_that_takes_too_long_is_aborted_and_tried_elsewhere() -> None:
    hangs, works = FakeReplica(lambda request: 1e9), FakeReplica()

    async def main() -> dict[str, float]:
        requests = scheduler(hangs, works, timeout=10)
        generate = requests.generate
        completion = await generate(call("a/0", "a"))
        assert completion.token_ids and now() == pytest.approx(11)
        await generate(call("a/1", "a"))
        # The replica that hung is the last choice for what is new, too.
        await generate(call("b/0", "b"))
        assert now() == pytest.approx(13)
        return requests.metrics()

    metrics = run(main())
    assert hangs.ids == ["a/0"] and hangs.aborted == ["a/0"] and not hangs.running
    assert works.ids == ["a/0#1", "a/1", "b/0"]
    assert metrics["timeouts"] == 1 and metrics["retries"] == 1 and metrics["latency_max"] == pytest.approx(11)


def test_a_request_that_takes_too_long_everywhere_comes_back_aborted() -> None:
    replicas = [FakeReplica(lambda request: 1e9) for _ in range(2)]

    async def main() -> tuple[Completion, dict[str, float], float]:
        requests = scheduler(*replicas, timeout=10, retries=3)
        completion = await requests.generate(call("a", "a"))
        return completion, requests.metrics(), now()

    completion, metrics, seconds = run(main())
    assert completion.finish_reason == "abort" and completion.token_ids == []
    assert seconds == pytest.approx(40) and metrics["given_up"] == 1
    assert [replica.ids for replica in replicas] == [["a", "a#2"], ["a#1", "a#3"]]
    assert not any(replica.running for replica in replicas)


@pytest.mark.parametrize("deaf", [False, True])
def test_requests_of_a_replica_that_dies_move_at_once_and_stay_where_they_went(deaf: bool) -> None:
    """A deaf replica does not tell; when another one takes its place, its requests are called back."""
    dies, lives = FakeReplica(lambda request: 100.0), FakeReplica()
    dies.deaf = deaf

    async def main() -> float:
        requests = scheduler(dies, lives, max_running_requests=8)
        generate = requests.generate
        tasks = [asyncio.create_task(generate(call(f"s{i}/0", f"s{i}"))) for i in range(12)]
        await asyncio.sleep(5)
        dies.die()
        if deaf:
            dead_too = FakeReplica()
            dead_too.die()
            requests.replace(0, dead_too)
        await asyncio.gather(*tasks)
        seconds = now()
        await asyncio.gather(*(generate(call(f"s{i}/1", f"s{i}")) for i in range(8)))
        assert requests.metrics()["replicas_up"] == 1
        return seconds

    assert run(main()) == pytest.approx(6)
    assert len(dies.ids) == 6 and not dies.running and lives.most_running == 8
    assert Counter(name.partition("#")[0] for name in lives.ids) == Counter(
        [f"s{i}/0" for i in range(12)] + [f"s{i}/1" for i in range(8)]
    )


def test_who_waits_for_a_replica_that_goes_down_is_served_elsewhere_by_priority() -> None:
    first, second = FakeReplica(slow_when_long), FakeReplica(slow_when_long)

    async def main() -> None:
        requests = scheduler(first, second, max_running_requests=1)
        generate = requests.generate
        await asyncio.gather(*(generate(call(f"{name}/0", name)) for name in "ab"))
        asked = [("a/1", "a", 7), ("b/1", "b", 0), ("a/2", "a", 1), ("c/0", "c", 5), ("b/2", "b", 9)]
        tasks = []
        for name, session, priority in asked:
            tasks.append(asyncio.create_task(generate(call(name, session, priority=priority))))
            await asyncio.sleep(0)
        assert list(first.running) == ["a/1"] and list(second.running) == ["b/1"]
        first.die()
        await asyncio.gather(*tasks)

    run(main())
    assert second.ids == ["b/0", "b/1", "a/2", "c/0", "a/1#1", "b/2"]


def test_without_a_replica_requests_wait_for_one() -> None:
    engine, spare = FakeReplica(), FakeReplica()

    async def main() -> None:
        requests = scheduler(engine)
        engine.dead = True
        waiting = [asyncio.create_task(requests.generate(call(name, name))) for name in "ab"]
        await asyncio.sleep(9)
        assert not any(task.done() for task in waiting) and requests.metrics()["queue"] == 2
        requests.replace(0, spare)
        await asyncio.gather(*waiting)
        assert now() == pytest.approx(10)

    run(main())
    assert engine.ids == [] and spare.ids == ["a#1", "b"]


def test_a_request_that_every_replica_dies_of_is_an_error() -> None:
    replicas = [FakeReplica() for _ in range(9)]
    for replica in replicas:
        replica.dead = True

    async def main() -> None:
        await scheduler(*replicas, retries=3).generate(call("poison"))

    with pytest.raises(ReplicaDown, match=r"Request 'poison' was tried 4 times"):
        run(main())


def test_an_exception_of_an_engine_reaches_the_caller_unchanged_and_frees_the_place() -> None:
    class Broken(FakeReplica):
        async def generate(self, request: GenerationRequest) -> Completion:
            raise TimeoutError("of its own")

    async def main() -> None:
        requests = scheduler(Broken(), max_running_requests=1, timeout=10)
        for _ in range(3):
            with pytest.raises(TimeoutError, match="of its own"):
                await requests.generate(call("a"))

    run(main())


def test_schedulers_with_prefixes_can_share_an_engine() -> None:
    engine = FakeReplica()

    async def main() -> None:
        both = [scheduler(engine, prefix=prefix) for prefix in ("w0-", "w1-")]
        await asyncio.gather(*(each.generate(call("a/0", "a")) for each in both))
        await both[1].release("a")

    run(main())
    assert engine.ids == ["w0-a/0", "w1-a/0"] and [r.session for r in engine.seen] == ["w0-a", "w1-a"]
    assert engine.released == ["w1-a"]


def test_with_a_place_free_the_engine_is_called_in_the_same_turn_of_the_event_loop() -> None:
    class Immediate(FakeReplica):
        async def generate(self, request: GenerationRequest) -> Completion:
            return Completion([1], [0.0], "stop")

    async def main(**options: Any) -> None:
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        generate = GenerationScheduler(Immediate(), **options).generate
        for turn in range(3):
            await generate(call(f"a/{turn}", "a"))
        assert not turns

    run(main())
    run(main(max_running_requests=1, timeout=10))


def test_metrics_name_the_engines_that_had_requests() -> None:
    async def main() -> None:
        requests = scheduler(*(FakeReplica() for _ in range(5)))
        assert not any(name.startswith("replica_") for name in requests.metrics())
        await asyncio.gather(*(requests.generate(call(f"r{i}")) for i in range(2)))
        served = {name: value for name, value in requests.metrics().items() if name.endswith("/served")}
        assert served == {"replica_0/served": 1, "replica_1/served": 1}

    run(main())


def test_metrics_describe_what_happened_since_the_last_report() -> None:
    replicas = [FakeReplica(slow_when_long), FakeReplica(slow_when_long)]

    async def main() -> None:
        requests = scheduler(*replicas, max_running_requests=1)
        generate = requests.generate
        tasks = [asyncio.create_task(generate(call(f"r{i}", tokens=4, prompt=10))) for i in range(6)]
        await asyncio.sleep(1)
        now_running = requests.metrics()
        assert (now_running["running"], now_running["queue"], now_running["queue_max"]) == (2, 4, 4)
        assert now_running["replica_0/running"] == now_running["replica_1/running"] == 1
        await asyncio.gather(*tasks)
        metrics = requests.metrics()
        assert metrics["requests"] == 6 and metrics["running_max"] == 2 and metrics["queue"] == 0
        assert metrics["latency_mean"] == pytest.approx(8) and metrics["latency_max"] == pytest.approx(12)
        assert metrics["latency_p50"] == pytest.approx(8) and metrics["latency_p95"] == pytest.approx(12)
        assert metrics["wait_mean"] == pytest.approx((4 + 4 + 8 + 8) / 6)
        assert metrics["tokens_per_second"] == pytest.approx(24 / 11)
        assert metrics["prefix_cache_hit_rate"] == pytest.approx(0.1)
        assert requests.sampled_tokens == 24
        again = requests.metrics()
        assert again["requests"] == 0 == again["prefix_cache_hit_rate"] and "latency_mean" not in again

    run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_running_requests": 0}, "max_running_requests=0"),
        ({"timeout": 0.0}, "timeout=0.0"),
        ({"retries": -1}, "retries=-1"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationScheduler(FakeReplica(), **options)


def test_a_scheduler_without_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="no replicas"):
        GenerationScheduler([])


@pytest.mark.parametrize(
    ("keys", "most"),
    [({"deterministic": False}, 3), ({"deterministic": True, "cluster": "ray"}, 3), ({"deterministic": True}, 9)],
)
def test_the_scheduler_has_the_bound_of_a_run_unless_engines_wait_for_quiet(keys: dict[str, Any], most: int) -> None:
    engine = FakeReplica()

    async def main() -> None:
        requests = GenerationScheduler.for_run(AgenticConfig(max_running_requests=3, **keys), engine, clock=now)
        await asyncio.gather(*(requests.generate(call(f"r{i}")) for i in range(9)))

    run(main())
    assert engine.most_running == most
