"""What gives a step its groups: what a checkpoint remembers of it, and old checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roll.config import AgenticConfig
from roll.pipelines.agentic import AgenticPipeline
from roll.pipelines.rlvr import RlvrPipeline
from roll.pipelines.sampling.meter import RolloutMeter
from roll.pipelines.sampling.stream import Source, group_stream, load_state, members_per_step
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.tasks import Task
from roll.tracking import Progress
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup
from tests.e2e.support import small_config


class Engines:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def pause(self) -> None:
        self.told.append("pause")

    async def resume(self) -> None:
        self.told.append("resume")

    async def publish(self, version: int) -> dict[str, float]:
        self.told.append(f"publish {version}")
        return {"weight_sync/seconds": 0.0}


def sampling(
    folder: Path, names: tuple[str, ...] = ("SimpleSokoban",), status: Status = Status.COMPLETED, **changes: Any
) -> tuple[GroupStream, Engines, list[str]]:
    """Sources whose groups have two members each; returns what was played too."""
    config: AgenticConfig = small_config(folder, **changes)
    engines, played = Engines(), []

    async def play(task: Task[int], episode: int, greedy: bool) -> Trajectory:
        played.append(task.group_id)
        await asyncio.sleep(0)
        score, error = (None, "broke") if status.is_error else (1.0, None)
        return Trajectory(task.tag, task.group_id, episode, 0, "same", [], status, score, error)

    def source(name: str) -> Source:
        def task(number: int) -> Task[int]:
            return Task(number, name, f"{name}-{number}", 2, number)

        return Source(name=name, tasks=task, play=play, groups_per_step=2, group_size=2)

    meter = RolloutMeter(Progress(), 2 * len(names), config.async_generation_ratio > 0)
    made = group_stream(config, [source(name) for name in names], engines, meter)  # type: ignore[arg-type]
    return made, engines, played


async def steps(made: GroupStream, engines: Engines, numbers: range, publish: bool = True) -> list[str]:
    trained = []
    for step in numbers:
        trained += [group.group_id for group in (await made.next(step, step - 1)).groups]
        if publish:
            await made.update(partial(engines.publish, step))
        made.trained()
    await made.close()
    return trained


def test_a_checkpoint_remembers_one_number_per_source(tmp_path: Path) -> None:
    made, engines, _ = sampling(tmp_path, ("a", "b"))
    trained = asyncio.run(steps(made, engines, range(1, 3)))
    assert trained == ["a-0", "a-1", "b-0", "b-1", "a-2", "a-3", "b-2", "b-3"]
    assert made.state_dict() == {"a": {"next": 4, "unfinished": []}, "b": {"next": 4, "unfinished": []}}
    assert engines.told == ["publish 1", "publish 2"], "synchronous engines need not pause"


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_step_whose_weights_are_not_published_counts_as_trained_in_a_checkpoint(tmp_path: Path, ratio: float) -> None:
    changes = {"async_generation_ratio": ratio, "actor_infer.model_update_frequency": 2, "old_log_probs": "recompute"}
    made, engines, _ = sampling(tmp_path, **changes)
    asyncio.run(steps(made, engines, range(1, 2), publish=False))
    state = made.state_dict()["SimpleSokoban"]
    again, _, _ = sampling(tmp_path, **changes)
    load_state(again, {"SimpleSokoban": state}, 0)
    assert asyncio.run(steps(again, engines, range(2, 3), publish=False)) == ["SimpleSokoban-2", "SimpleSokoban-3"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "position", "expected"),
    [
        (None, 28, ["SimpleSokoban-28", "SimpleSokoban-29"]),
        ({"SimpleSokoban": {"next": 14, "unfinished": [12, 13]}}, 16, ["SimpleSokoban-12", "SimpleSokoban-13"]),
        ({"SimpleSokoban": {"next": 14, "unfinished": [12]}}, 16, ["SimpleSokoban-12", "SimpleSokoban-14"]),
        ({}, 0, ["SimpleSokoban-0", "SimpleSokoban-1"]),
    ],
)
def test_a_run_goes_on_from_any_state(tmp_path: Path, state: Any, position: int, expected: list[str]) -> None:
    made, engines, _ = sampling(tmp_path)
    load_state(made, state, position)
    assert asyncio.run(steps(made, engines, range(1, 2))) == expected


def test_engines_pause_for_new_weights_where_sampling_goes_on(tmp_path: Path) -> None:
    made, engines, _ = sampling(tmp_path, async_generation_ratio=1.0, old_log_probs="recompute")
    asyncio.run(steps(made, engines, range(1, 2)))
    assert engines.told == ["pause", "publish 1", "resume"]


SOURCES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3)
"""The share and the group size of each source."""


@pytest.fixture(scope="module")
def replacing(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, AgenticConfig]:
    """Configurations that replace groups; by whether they sample ahead."""
    ahead = {"async_generation_ratio": 1.0, "old_log_probs": "recompute"}
    folder = tmp_path_factory.mktemp("run")
    return {
        # Of eight groups, the default, all are dropped now and then (seed 79), and the step goes on without.
        key: small_config(
            folder,
            **{"dynamic_sampling.enable": "true", "dynamic_sampling.max_batches": 100},
            **(ahead if key else {}),
        )
        for key in (False, True)
    }


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@example(shares=[(1, 1), (1, 1)], seed=79, filtered=True, ahead=False, stop=1)
@given(shares=SOURCES, seed=st.integers(0, 99), filtered=st.booleans(), ahead=st.booleans(), stop=st.integers(1, 3))
def test_every_step_has_the_share_of_each_source_and_a_resumed_run_the_same_groups(
    replacing: dict[bool, AgenticConfig],
    shares: list[tuple[int, int]],
    seed: int,
    filtered: bool,
    ahead: bool,
    stop: int,
) -> None:
    config = replacing[ahead]

    async def play(task: Task[int], episode: int, greedy: bool) -> Trajectory:
        for _ in range(Random(f"{seed}/{task.group_id}/{episode}").randrange(4)):
            await asyncio.sleep(0)
        return Trajectory(task.tag, task.group_id, episode, 0, "same", [], Status.COMPLETED, 1.0)

    def keep(group: TrajectoryGroup) -> bool:
        return Random(f"{seed}/{group.group_id}").random() < 0.6

    def source(name: str, share: int, size: int) -> Source:
        def task(number: int) -> Task[int]:
            return Task(number, name, f"{name}-{number}", size, number)

        return Source(
            name=name,
            tasks=task,
            play=play,
            groups_per_step=share,
            group_size=size,
            keep=keep if filtered else None,
            in_rounds=bool(len(name) % 2),
        )

    def made() -> GroupStream:
        sources = [source("source" + "s" * n, share, size) for n, (share, size) in enumerate(shares)]
        meter = RolloutMeter(Progress(), members_per_step(sources), ahead)
        return group_stream(config, sources, Engines(), meter)  # type: ignore[arg-type]

    async def steps_of(one: GroupStream, numbers: range) -> list[list[tuple[str, int]]]:
        found = []
        for step in numbers:
            groups = (await one.next(step, step - 1)).groups
            found.append([(group.group_id, len(group.trajectories)) for group in groups])
            await one.update(partial(Engines().publish, step))
        await one.close()
        return found

    first, again = made(), made()
    resumed = asyncio.run(steps_of(first, range(1, stop + 1)))
    load_state(again, json.loads(json.dumps(first.state_dict())), 0)
    resumed += asyncio.run(steps_of(again, range(stop + 1, 5)))
    for step in resumed:
        assert Counter(name.split("-")[0] for name, _ in step) == {
            "source" + "s" * n: share for n, (share, _) in enumerate(shares)
        }
        assert all(size == shares[name.count("s", 1)][1] for name, size in step)
    trained = [name for step in resumed for name, _ in step]
    assert len(set(trained)) == len(trained), "no group is trained twice"
    # Ahead, which groups a step gets depends on who finishes first.
    assert ahead or resumed == asyncio.run(steps_of(made(), range(1, 5)))


class Recorder:
    """Stands in for the stream of a pipeline; remembers where it was told to begin."""

    loaded: Any = None

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state

    def begin_at(self, position: int) -> None:
        self.loaded = position


@pytest.mark.parametrize(
    ("state", "loaded"),
    [
        ({"groups_played": 28}, 28),
        (
            {"groups_played": 16, "ahead": {"SimpleSokoban": {"next": 14, "unfinished": [12, 13]}}},
            {"SimpleSokoban": {"next": 14, "unfinished": [12, 13]}},
        ),
        ({"sampling": {"a": {"next": 4, "unfinished": []}}}, {"a": {"next": 4, "unfinished": []}}),
    ],
)
def test_checkpoints_of_earlier_versions_are_read_for_levels(state: dict[str, Any], loaded: Any) -> None:
    pipeline = object.__new__(AgenticPipeline)
    pipeline.stream = Recorder()  # type: ignore[assignment]
    pipeline.load_state(state)
    assert pipeline.stream.loaded == loaded  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "loaded"),
    [
        ({"data": 26}, 26),
        ({"data": 18, "ahead": {"next": 22, "unfinished": [19]}}, {"prompts": {"next": 22, "unfinished": [19]}}),
        (
            {"data": 4, "sampling": {"prompts": {"next": 4, "unfinished": []}}},
            {"prompts": {"next": 4, "unfinished": []}},
        ),
    ],
)
def test_checkpoints_of_earlier_versions_are_read_for_prompts(state: dict[str, Any], loaded: Any) -> None:
    class Prompts:
        def load_state(self, state: dict[str, Any]) -> int:
            return int(state["data"])

    pipeline = object.__new__(RlvrPipeline)
    pipeline.prompts = Prompts()  # type: ignore[assignment]
    pipeline.stream = Recorder()  # type: ignore[assignment]
    pipeline.load_state(state)
    assert pipeline.stream.loaded == loaded  # type: ignore[attr-defined]
