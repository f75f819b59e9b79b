"""Groups sampled ahead of training, in simulated time."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from scheduler_fakes import group_of
from virtual_time import run_in_virtual_time

from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.groups import RolloutError
from roll.schedulers.source_share import GroupSource
from roll.schedulers.staleness import staleness_metrics
from roll.trajectories.model import Status, TrajectoryGroup


class World:
    """A policy whose version tests set, and groups that take as long as they are told."""

    def __init__(self, seconds: Callable[[int], float] = lambda number: 1.0, **options: Any) -> None:
        self.version = 0
        self.begun: list[int] = []
        self.finished: list[int] = []
        self.cancelled: list[int] = []
        self.fate: Callable[[int], str] = lambda number: "good"
        self._seconds = seconds
        whole = {name: options.pop(name) for name in ("ratio", "max_staleness", "pause", "resume") if name in options}
        source = GroupSource(tasks=lambda n: n, play_group=lambda n: self.play(n), **options)
        self.stream = GroupStream({"only": source}, clock=now, **whole)

    async def play(self, number: int) -> TrajectoryGroup:
        self.begun.append(number)
        first = self.version
        try:
            await asyncio.sleep(self._seconds(number))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        self.finished.append(number)
        fate = self.fate(number)
        if fate == "raise":
            raise MemoryError("the engine is out of memory")
        status = Status.ERROR_ENV if fate == "fail" else Status.COMPLETED
        return group_of(number, [(first, self.version)], status=status, score=0.0 if fate == "dull" else 1.0)

    async def step(self, step: int, train_seconds: float = 0.0) -> StepGroups:
        """Sample, train and publish one step, as a pipeline does."""
        rollout = await self.stream.next(step, self.version)
        await asyncio.sleep(train_seconds)

        async def publish() -> None:
            self.version = step

        await self.stream.update(publish)
        return rollout


def now() -> float:
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return run_in_virtual_time(main)


def numbers(rollout: StepGroups) -> list[int]:
    return [int(group.group_id.removeprefix("train-")) for group in rollout.groups]


def not_dull(group: TrajectoryGroup) -> bool:
    return group.trajectories[0].score != 0.0


def steps_of(world: World, count: int, train_seconds: float = 0.0) -> list[list[int]]:
    async def main() -> list[list[int]]:
        try:
            return [numbers(await world.step(step, train_seconds)) for step in range(1, count + 1)]
        finally:
            await world.stream.close()

    return run(main())


@pytest.mark.parametrize("order", range(3))
def test_without_a_lead_steps_are_synchronous_and_their_groups_do_not_depend_on_who_finishes_first(order: int) -> None:
    world = World(lambda n: random.Random(f"{order} {n}").random(), groups_per_step=4, keep=not_dull, most=40)
    world.fate = lambda n: "dull" if n % 3 == 1 else "fail" if n % 10 == 5 else "good"

    async def main() -> list[list[int]]:
        steps = []
        for step in range(1, 6):
            rollout = await world.stream.next(step, world.version)
            assert len(world.begun) == len(world.finished), "nothing runs while a step is trained"
            steps.append(numbers(rollout))
            begun = len(world.begun)
            await asyncio.sleep(100)
            world.version = step
            world.stream.trained()
            await asyncio.sleep(100)
            assert len(world.begun) == begun, "nothing begins before the next step asks"
        return steps

    good = [n for n in range(100) if n % 3 != 1 and n % 10 != 5]
    assert run(main()) == [good[4 * i : 4 * i + 4] for i in range(5)]
    assert sorted(world.begun) == list(range(good[19] + 1)), "no group more than needed"


@pytest.mark.parametrize(("ratio", "ahead"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4), (1.6, 6), (3.0, 12)])
def test_sampling_runs_ahead_by_the_ratio_and_no_further(ratio: float, ahead: int) -> None:
    world = World(groups_per_step=4, ratio=ratio)

    async def main() -> None:
        for step in range(1, 8):
            rollout = await world.stream.next(step, world.version)
            await asyncio.sleep(1000)
            assert world.stream.live == len(world.begun) - 4 * (step - 1) == 4 + ahead
            assert rollout.metrics["rollout/staleness/max"] <= math.ceil(ratio)
            world.version = step
            world.stream.trained()

    run(main())
    assert world.stream.max_staleness == math.ceil(ratio)


def test_ratios_without_an_exact_binary_form_are_not_rounded_down() -> None:
    assert [World(groups_per_step=10, ratio=r / 10).stream.capacity for r in range(11)] == list(range(10, 21))


def test_steps_take_groups_in_order_when_the_staleness_bound_leaves_no_choice() -> None:
    world = World(lambda n: 50.0 if n % 7 == 0 and n >= 12 else 1.0, groups_per_step=4, ratio=2)
    assert steps_of(world, 6, train_seconds=5) == [list(range(4 * i, 4 * i + 4)) for i in range(6)]


def test_a_straggler_is_passed_over_once_and_trained_before_it_is_too_stale() -> None:
    world = World(lambda n: 30.0 if n == 1 else 1.0, groups_per_step=4, ratio=0.5)
    steps = steps_of(world, 4, train_seconds=1)
    assert steps[0] == [0, 2, 3, 4] and 1 in steps[1]
    assert sorted(sum(steps, [])) == list(range(16))


def test_a_window_of_none_takes_groups_strictly_in_order() -> None:
    world = World(lambda n: 30.0 if n == 1 else 1.0, groups_per_step=4, ratio=0.5, window=0)
    assert steps_of(world, 4) == [list(range(4 * i, 4 * i + 4)) for i in range(4)]


def test_training_overlaps_with_sampling() -> None:
    async def seconds(ratio: float) -> float:
        world = World(lambda n: 10.0, groups_per_step=4, ratio=ratio)
        for step in range(1, 11):
            await world.step(step, train_seconds=10)
        await world.stream.close()
        return now()

    assert run(seconds(0)) == pytest.approx(200)
    assert run(seconds(1)) == pytest.approx(110)


def test_groups_under_way_go_on_under_new_weights_and_say_so() -> None:
    world = World(lambda n: 15.0, groups_per_step=2, ratio=1)

    async def main() -> dict[str, float]:
        await world.step(1, train_seconds=10)
        rollout = await world.stream.next(2, world.version)
        await world.stream.close()
        assert [t.turns[0].policy_version for g in rollout.groups for t in g.trajectories] == [(0, 0)] * 2
        return rollout.metrics

    metrics = run(main())
    assert metrics["rollout/staleness/mean"] == metrics["rollout/staleness/max"] == 1

    async def longer() -> dict[str, float]:
        slow = World(lambda n: 15.0 if n < 2 else 40.0, groups_per_step=2, ratio=1)
        await slow.step(1, train_seconds=10)
        rollout = await slow.stream.next(2, slow.version)
        await slow.stream.close()
        return rollout.metrics

    metrics = run(longer())
    assert metrics["rollout/staleness/mixed_turns"] == 1 and metrics["rollout/staleness/mean_newest"] == 0


def test_no_group_begins_while_weights_are_published_and_no_more_than_allowed_after() -> None:
    events: list[str] = []

    async def note(what: str) -> None:
        events.append(f"{what} {world.stream.counts['admitted']}")
        await asyncio.sleep(5)

    world = World(
        lambda n: 1.0,
        groups_per_step=3,
        ratio=1,
        keep=not_dull,
        pause=lambda: note("pause"),
        resume=lambda: note("resume"),
    )
    world.fate = lambda n: "dull" if n in (6, 7) else "good"

    async def main() -> None:
        await world.stream.next(1, 0)
        await world.stream.update(lambda: note("publish"))
        assert world.stream.live == 6
        await world.stream.next(2, 1)
        # 6 and 7 are filtered out while weights are published; their replacements wait until it is over.
        await world.stream.update(lambda: note("publish"))
        await asyncio.sleep(10)
        await world.stream.close()

    run(main())
    assert events == [f"{what} {admitted}" for admitted in (6, 9) for what in ("pause", "publish", "resume")]
    assert sorted(world.finished)[:9] == list(range(9)) and world.stream.counts["admitted"] == 9 + 3 + 2


def test_groups_that_teach_nothing_are_replaced_up_to_a_bound_and_then_the_step_makes_do() -> None:
    world = World(groups_per_step=4, keep=not_dull, most=8)
    world.fate = lambda n: "good" if n in (2, 6) or n >= 16 else "dull"

    async def main() -> list[StepGroups]:
        return [await world.step(step) for step in (1, 2, 3)]

    few, none, full = run(main())
    assert numbers(few) == [2, 6] and not few.is_fallback and len(few.dropped) == 6
    assert none.is_fallback and numbers(none) == [8, 9, 10, 11] and [d.number for d in none.dropped] == [12, 13, 14, 15]
    assert numbers(full) == [16, 17, 18, 19]
    assert world.begun == list(range(20))
    assert world.stream.counts == {"admitted": 20, "trained": 10, "filtered": 10}


def test_when_every_group_fails_the_step_is_an_error_that_holds_the_first() -> None:
    world = World(groups_per_step=3)
    world.fate = lambda n: "fail"
    with pytest.raises(
        RolloutError, match=r"step 1: every one of the 6 groups that were tried failed.*0000000/0 broke"
    ):
        steps_of(world, 1)


@pytest.mark.parametrize("when", [2, 9])
def test_an_engine_that_fails_ends_the_stream_with_its_own_exception(when: int) -> None:
    world = World(groups_per_step=4, ratio=1)
    world.fate = lambda n: "raise" if n == when else "good"
    with pytest.raises(MemoryError, match="out of memory"):
        steps_of(world, 4, train_seconds=3)
    assert sorted(world.finished + world.cancelled) == sorted(world.begun)


def test_a_group_that_an_engine_sampled_with_older_weights_than_allowed_is_replaced() -> None:
    world = World(groups_per_step=2, ratio=1)
    play, lag = world.play, 0

    async def lagging(number: int) -> TrajectoryGroup:
        group = await play(number)
        group.trajectories[0].turns[0].policy_version = (max(world.version - (lag if number % 2 else 0), 0),) * 2
        return group

    world.play = lagging  # type: ignore[method-assign]

    async def main() -> None:
        nonlocal lag
        for step in range(1, 6):
            await world.step(step)
        lag = 3
        stale = 0.0
        for step in range(6, 10):
            rollout = await world.step(step)
            stale += rollout.metrics["rollout/groups_stale"]
            assert rollout.metrics["rollout/staleness/max"] <= 1
        assert stale > 0
        await world.stream.close()

    run(main())


def test_after_a_resume_no_group_is_repeated_none_is_left_out_and_nothing_bursts() -> None:
    async def first() -> tuple[list[int], dict[str, Any], int]:
        world = World(lambda n: 1.0 + n % 5, groups_per_step=4, ratio=1.5, keep=not_dull)
        world.fate = lambda n: "dull" if n % 6 == 1 else "good"
        trained = [n for step in (1, 2, 3) for n in numbers(await world.step(step, train_seconds=2))]
        state = json.loads(json.dumps(world.stream.state_dict()))
        # Taken for a step, but the run ends before it is trained: not trained for whoever goes on from the checkpoint.
        await world.stream.next(4, world.version)
        assert world.stream.state_dict() == state
        await world.stream.close()
        assert not world.stream.live
        counts = world.stream.counts
        assert counts["admitted"] == counts["trained"] + counts["filtered"] + counts["cancelled"]
        return trained, state, world.stream.capacity

    trained, state, capacity = run(first())
    world = World(lambda n: 1.0 + n % 5, groups_per_step=4, ratio=1.5, keep=not_dull)
    world.fate = lambda n: "dull" if n % 6 == 1 else "good"
    world.stream.load_state_dict(state)
    world.version = 3
    assert world.stream.state_dict() == state

    async def second() -> list[int]:
        waiting = asyncio.create_task(world.stream.next(4, 3))
        await asyncio.sleep(0.5)
        assert (
            len(world.begun) == capacity
            and world.begun[: len(state["only"]["unfinished"])] == state["only"]["unfinished"]
        )
        later = numbers(await waiting)
        world.stream.trained()
        for step in (5, 6, 7):
            later += numbers(await world.step(step, train_seconds=2))
        await world.stream.close()
        return later

    later = run(second())
    assert len(set(trained + later)) == len(trained + later) == 28
    missing = set(range(max(trained + later))) - set(trained + later) - {n for n in range(100) if n % 6 == 1}
    assert missing <= set(world.cancelled + world.finished), "what is missing was still under way at the end"


def test_a_state_is_refused_once_groups_have_begun() -> None:
    world = World(groups_per_step=1)
    steps_of(world, 1)
    with pytest.raises(RuntimeError, match="before its first group"):
        world.stream.load_state_dict({"only": {"next": 0, "unfinished": []}})


def test_a_closed_stream_gives_no_more_groups() -> None:
    world = World(lambda n: 5.0, groups_per_step=2, ratio=1)

    async def main() -> None:
        waiting = asyncio.create_task(world.stream.next(1, 0))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await world.stream.close()
        await world.stream.close()
        with pytest.raises(RuntimeError, match="closed"):
            await world.stream.next(1, 0)

    run(main())
    assert sorted(world.cancelled) == [0, 1, 2, 3] and world.stream.counts["cancelled"] == 4


def test_progress_counts_finished_groups() -> None:
    world = World(lambda n: 1.0 + n, groups_per_step=3)
    seen: list[tuple[int, int]] = []
    run(world.stream.next(1, 0, on_progress=lambda done, wanted: seen.append((done, wanted))))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups_per_step": 0}, "groups_per_step=0"),
        ({"ratio": -0.1}, "async_generation_ratio=-0.1"),
        ({"ratio": math.inf}, "async_generation_ratio=inf"),
        ({"ratio": math.nan}, "async_generation_ratio=nan"),
        ({"most": 3}, "most=3"),
        ({"window": -1}, "window=-1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World(**{"groups_per_step": 4, **options})


def test_staleness_is_counted_per_token_and_without_members_that_broke() -> None:
    fresh = group_of(0, [(3, 3)])
    old = group_of(1, [(1, 2), (2, 3)])
    old.trajectories[0].turns[0].completion_ids = [1] * 6
    broken = group_of(2, [(0, 0)], status=Status.ERROR_TIMEOUT)
    assert staleness_metrics([fresh, old, broken], 3) == {
        "mean": pytest.approx((2 * 0 + 6 * 2 + 2 * 1) / 10),
        "mean_newest": pytest.approx((2 * 0 + 6 * 1 + 2 * 0) / 10),
        "max": 2.0,
        "stale_tokens": pytest.approx(0.8),
        "mixed_turns": pytest.approx(2 / 3),
    }
    assert set(staleness_metrics([broken], 3).values()) == {0.0}


def test_what_a_source_says_of_a_number_is_what_is_rolled_out() -> None:
    seen: list[str] = []

    async def roll_out(spec: str) -> TrajectoryGroup:
        seen.append(spec)
        return group_of(int(spec), [(0, 0)])

    play: Callable[[str], Awaitable[TrajectoryGroup]] = roll_out
    stream = GroupStream({"only": GroupSource(tasks=str, play_group=play, groups_per_step=3)})
    rollout = run(stream.next(1, 0))
    assert seen == ["0", "1", "2"] and numbers(rollout) == [0, 1, 2]
