"""What the keys of a configuration make of the stream that gives a step its groups, and what its meter counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from roll.pipelines.sampling.meter import RolloutMeter
from roll.pipelines.sampling.stream import Source, group_stream, members_per_step, retried
from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.groups import RolloutError
from roll.schedulers.tasks import Task
from roll.tracking import Progress
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn
from tests.e2e.support import small_config


class Shown(Progress):
    """Remembers how far the rollout was said to be."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int, int]] = []

    def rollout_progress(self, done: int, total: int, tokens: int) -> None:
        self.said.append((done, total, tokens))


class Engines:
    async def pause(self) -> None: ...

    async def resume(self) -> None: ...


class World:
    """A source whose third group is slower than the second, which is slower than the first; members have one token."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.config = small_config(folder, **keys)
        self.shown = Shown()
        self.played: list[tuple[int, int, bool]] = []
        self.running: set[int] = set()
        self.at_once: list[set[int]] = []
        self.fails: Callable[[int, int], bool] = lambda number, episode: False
        self.worth: Callable[[int], bool] = lambda number: True

    async def play(self, task: Task[int], episode: int, greedy: bool) -> Trajectory:
        self.played.append((task.number, episode, greedy))
        self.running.add(task.number)
        self.at_once.append(set(self.running))
        try:
            for _ in range(1 + 20 * (task.number % 3)):
                await asyncio.sleep(0)
        finally:
            self.running.discard(task.number)
        if self.fails(task.number, episode):
            return Trajectory("t", task.group_id, episode, 0, "same", [], Status.ERROR_ENV, None, "broke")
        turn = Turn([1], [2], [-0.5], (0, 0), "", "", None, 1.0)
        return Trajectory("t", task.group_id, episode, 0, "same", [turn], Status.COMPLETED, 1.0)

    def stream(self, **options: Any) -> tuple[GroupStream, RolloutMeter]:
        def task(number: int) -> Task[int]:
            return Task(number, "t", str(number), 2, number)

        source = Source(name="t", tasks=task, play=self.play, groups_per_step=3, group_size=2, **options)
        ratio = self.config.async_generation_ratio
        meter = RolloutMeter(self.shown, members_per_step([source]), ratio > 0)
        return group_stream(self.config, [source], Engines(), meter), meter  # type: ignore[arg-type]

    def step(self, **options: Any) -> tuple[StepGroups, dict[str, float]]:
        async def main() -> tuple[StepGroups, dict[str, float]]:
            stream, meter = self.stream(**options)
            meter.begin()
            try:
                got = await stream.next(1, 0, meter.groups)
                return got, meter.end(got)
            finally:
                await stream.close()

        return asyncio.run(main())

    def keep(self, group: Any) -> bool:
        return self.worth(int(group.group_id))


def numbers(got: StepGroups) -> list[int]:
    return [int(group.group_id) for group in got.groups]


AHEAD = {"async_generation_ratio": 1.5, "old_log_probs": "recompute"}


@pytest.mark.parametrize(
    ("keys", "capacity", "staleness"),
    [
        ({}, 3, 0),
        ({"actor_infer.model_update_frequency": 3}, 3, 2),
        (AHEAD, 7, 2),
        ({**AHEAD, "actor_infer.model_update_frequency": 2}, 7, 3),
    ],
)
def test_ratio_and_update_frequency_bound_the_lead(
    tmp_path: Path, keys: dict[str, Any], capacity: int, staleness: int
) -> None:
    stream, _ = World(tmp_path, **keys).stream()
    assert (stream.capacity, stream.max_staleness) == (capacity, staleness)


def test_a_group_that_broke_is_one_of_a_synchronous_step_and_is_replaced_ahead_of_training(tmp_path: Path) -> None:
    for keys, is_replaced in (({}, False), (AHEAD, True)):
        world = World(tmp_path, **keys)
        world.fails = lambda number, episode: number == 0
        got, _ = world.step()
        assert len(got.groups) == 3 and (0 not in numbers(got)) == is_replaced


def test_only_so_many_batches_are_tried_for_a_step(tmp_path: Path) -> None:
    world = World(tmp_path, **{"dynamic_sampling.enable": True, "dynamic_sampling.max_batches": 4})
    world.worth = lambda number: number in (2, 7)
    got, _ = world.step(keep=world.keep)
    assert numbers(got) == [2, 7] and got.consumed == 12


def test_additional_groups_run_only_in_step_with_training(tmp_path: Path) -> None:
    for keys, most in (({}, 5), (AHEAD, 7)):
        world = World(tmp_path, **keys)
        world.step(keep=world.keep, additional=2)
        assert len({number for number, _, _ in world.played}) == most


def test_rounds_are_for_synchronous_steps_only(tmp_path: Path) -> None:
    world = World(tmp_path, **{"dynamic_sampling.enable": True, "dynamic_sampling.max_batches": 9})
    world.worth = lambda number: number > 0
    world.step(keep=world.keep, in_rounds=True)
    assert max(world.at_once, key=max) == {3}, "the replacement waits for the whole round"
    world.at_once.clear()
    world.step(keep=world.keep, in_rounds=False)
    assert {2, 3} <= max(world.at_once, key=max)


def test_groups_beyond_a_step_run_as_the_configuration_says(tmp_path: Path) -> None:
    keys = {"over_rollout.ratio": 0.5, "over_rollout.wait_after_min": 0, "deterministic": False}
    world = World(tmp_path, **keys)
    world.fails = lambda number, episode: number == 0
    got, _ = world.step(in_rounds=True)
    assert {number for number, _, _ in world.played} == set(range(7)), "as many again, and one in place of group 0"
    assert numbers(got) == [1, 3, 4] and got.late == {"t": 3}, "those that end first"
    patient = World(tmp_path, **{**keys, "over_rollout.wait_after_min": 60})
    assert numbers(patient.step()[0]) == [0, 1, 2]


def test_spares_and_greedy_members_are_those_of_the_configuration(tmp_path: Path) -> None:
    world = World(tmp_path, group_size_redundancy=1, adv_estimator="remax")
    got, _ = world.step()
    members = {(episode, greedy) for number, episode, greedy in world.played if number == 0}
    assert members == {(0, False), (1, False), (2, False), (3, True)}
    assert [group.baseline for group in got.groups] == [1.0] * 3


def test_a_step_with_training_shows_members_and_has_no_metrics_of_a_lead(tmp_path: Path) -> None:
    world = World(tmp_path)
    _, metrics = world.step()
    assert [(done, total) for done, total, _ in world.shown.said] == [(done, 6) for done in range(1, 7)]
    assert world.shown.said[-1][2] == 6, "a token per member"
    assert "rollout/groups_ready" not in metrics and "rollout/wait_seconds" not in metrics
    assert metrics["throughput/sampled_tokens_per_second"] > 0


def test_a_lead_shows_groups_and_says_what_is_under_way(tmp_path: Path) -> None:
    world = World(tmp_path, **AHEAD)
    _, metrics = world.step()
    assert all(total == 3 for _, total, _ in world.shown.said) and world.shown.said[-1][0] == 3
    under_way = metrics["rollout/groups_running"] + metrics["rollout/groups_ready"]
    assert under_way == 7 - 3 and metrics["rollout/wait_seconds"] >= 0


def test_where_everything_that_was_tried_broke_the_step_fails_with_the_first_error(tmp_path: Path) -> None:
    world = World(tmp_path, **AHEAD)
    world.fails = lambda number, episode: True
    with pytest.raises(RolloutError, match=r"every one of the \d+ groups .* The first: broke"):
        world.step()


def test_a_group_all_of_whose_members_broke_is_played_again_as_often_as_asked_for() -> None:
    def group(*statuses: Status) -> TrajectoryGroup:
        members = [Trajectory("t", "g", number, 0, status=status) for number, status in enumerate(statuses)]
        return TrajectoryGroup("g", "t", members)

    broken, half = group(Status.ERROR_TIMEOUT, Status.ERROR_ENV), group(Status.ERROR_ENV, Status.COMPLETED)
    for times, tries, expected in [(0, [broken], broken), (2, [broken, half], half), (2, [broken] * 3, broken)]:
        left = iter(tries)

        async def play(task: Any, left: Iterator[TrajectoryGroup] = left) -> TrajectoryGroup:
            return next(left)

        assert asyncio.run(retried(play, times)(cast(Any, None))) is expected
        assert next(left, None) is None, "no try too few"
