"""What gives a step its groups: what a checkpoint remembers of it, and old checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig
from roll.pipelines.agentic import AgenticPipeline
from roll.pipelines.rlvr import RlvrPipeline
from roll.pipelines.sampling.stream import Sampling, Source
from roll.schedulers.tasks import Task
from roll.tracking import Progress
from roll.trajectories.model import Status, Trajectory
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
) -> tuple[Sampling, Engines, list[str]]:
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

    made = Sampling(config, [source(name) for name in names], engines, lambda: 0, Progress())  # type: ignore[arg-type]
    return made, engines, played


async def steps(made: Sampling, numbers: range, publish: bool = True) -> list[str]:
    trained = []
    for step in numbers:
        trained += [group.group_id for group in (await made.next(step)).groups]
        if publish:
            await made.publish(step)
        made.complete()
    await made.close()
    return trained


def test_a_checkpoint_remembers_one_number_per_source(tmp_path: Path) -> None:
    made, engines, _ = sampling(tmp_path, ("a", "b"))
    trained = asyncio.run(steps(made, range(1, 3)))
    assert trained == ["a-0", "a-1", "b-0", "b-1", "a-2", "a-3", "b-2", "b-3"]
    assert made.state() == {"a": {"next": 4, "unfinished": []}, "b": {"next": 4, "unfinished": []}}
    assert engines.told == ["publish 1", "publish 2"], "synchronous engines need not pause"


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_step_whose_weights_are_not_published_counts_as_trained_in_a_checkpoint(tmp_path: Path, ratio: float) -> None:
    changes = {"async_generation_ratio": ratio, "actor_infer.model_update_frequency": 2, "old_log_probs": "recompute"}
    made, _, _ = sampling(tmp_path, **changes)
    asyncio.run(steps(made, range(1, 2), publish=False))
    state = made.state()["SimpleSokoban"]
    again, _, _ = sampling(tmp_path, **changes)
    again.load_state({"SimpleSokoban": state}, 0)
    assert asyncio.run(steps(again, range(2, 3), publish=False)) == ["SimpleSokoban-2", "SimpleSokoban-3"]


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
    made, _, _ = sampling(tmp_path)
    made.load_state(state, position)
    assert asyncio.run(steps(made, range(1, 2))) == expected


def test_engines_pause_for_new_weights_where_sampling_goes_on(tmp_path: Path) -> None:
    made, engines, _ = sampling(tmp_path, async_generation_ratio=1.0, old_log_probs="recompute")
    asyncio.run(steps(made, range(1, 2)))
    assert engines.told == ["pause", "publish 1", "resume"]


class Recorder:
    """Stands in for the sampling of a pipeline; remembers what it was told to load."""

    loaded: tuple[Any, int]

    def load_state(self, state: Any, position: int) -> None:
        self.loaded = (state, position)


@pytest.mark.parametrize(
    ("state", "loaded"),
    [
        ({"groups_played": 28}, (None, 28)),
        (
            {"groups_played": 16, "ahead": {"SimpleSokoban": {"next": 14, "unfinished": [12, 13]}}},
            ({"SimpleSokoban": {"next": 14, "unfinished": [12, 13]}}, 16),
        ),
        ({"sampling": {"a": {"next": 4, "unfinished": []}}}, ({"a": {"next": 4, "unfinished": []}}, 0)),
    ],
)
def test_checkpoints_of_earlier_versions_are_read_for_levels(state: dict[str, Any], loaded: Any) -> None:
    pipeline = object.__new__(AgenticPipeline)
    pipeline.sampling = Recorder()  # type: ignore[assignment]
    pipeline.load_state(state)
    assert pipeline.sampling.loaded == loaded  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "loaded"),
    [
        ({"data": 26}, (None, 26)),
        ({"data": 18, "ahead": {"next": 22, "unfinished": [19]}}, ({"prompts": {"next": 22, "unfinished": [19]}}, 18)),
        (
            {"data": 4, "sampling": {"prompts": {"next": 4, "unfinished": []}}},
            ({"prompts": {"next": 4, "unfinished": []}}, 4),
        ),
    ],
)
def test_checkpoints_of_earlier_versions_are_read_for_prompts(state: dict[str, Any], loaded: Any) -> None:
    class Parts:
        data: Any = None

        def resume_position(self, data: int) -> int:
            return data

    pipeline = object.__new__(RlvrPipeline)
    pipeline.parts = Parts()  # type: ignore[assignment]
    pipeline.parts.data = pipeline.parts  # type: ignore[assignment]
    pipeline.sampling = Recorder()  # type: ignore[assignment]
    pipeline.load_state(state)
    assert pipeline.sampling.loaded == loaded  # type: ignore[attr-defined]
