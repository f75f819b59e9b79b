"""Tasksets of the real package verifiers, which is installed apart, played through the gateway by a scripted policy."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from manager_fakes import Activity

from roll.common.threads import CallThreads
from roll.env_managers import EnvManagerLimits, EpisodeSpec, Timeouts
from roll.env_managers.agent import AgentEnvManager
from roll.envs import Tag, make
from roll.gateway import AgentEndpoint
from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from

ROOT = Path(__file__).resolve().parents[2]
THEIRS = ROOT / ".venv" / "verifiers" / "bin" / "python"
TASKSETS = ROOT / "tests" / "envs" / "verifiers_tasksets"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not THEIRS.exists(), reason="verifiers is not installed: tests/envs/verifiers.txt"),
]
Say = Callable[[str], str]


@functools.cache
def renderer() -> ChatRenderer:
    return ChatRenderer(load_tokenizer("toy"))


def tag(taskset: str, **options: Any) -> Tag:
    paths = [str(TASKSETS), str(ROOT / "examples" / "agents" / "tasksets")]
    return Tag(
        "Taskset", "verifiers", {"taskset": taskset, "python": str(THEIRS), "paths": paths, **options}, max_steps=6
    )


def play(say: Say, taskset: str, seeds: Sequence[int] = (0,), **options: Any) -> list[Trajectory]:
    """Play episodes at the same time with a policy that says what ``say`` makes of what it is told."""

    async def generate(request: GenerationRequest) -> Completion:
        said = say(renderer().encoder.decode(request.prompt_ids))
        ids = [*renderer().encoder.encode(said), *renderer().stop_token_ids[:1]]
        return Completion(ids, [-0.5] * len(ids), "stop", (2, 2))

    activity, endpoint, threads = Activity(), AgentEndpoint("toy"), CallThreads(16)
    manager = AgentEnvManager(
        renderer=renderer(),
        generate=generate,
        limits=EnvManagerLimits(max_steps=6, sequence_length=3000, max_new_tokens=200),
        timeouts=Timeouts(generate=20.0, reset=60.0),
        threads=threads,
        activity=activity,
    )
    manager.endpoint = endpoint
    chosen = tag(taskset, **options)

    async def all_of_them() -> list[Trajectory]:
        specs = [EpisodeSpec("Taskset", f"group-{seed}", 0, seed, run_seed=5) for seed in seeds]
        return list(await asyncio.gather(*(manager.run(spec, lambda: make(chosen)) for spec in specs)))

    try:
        return asyncio.run(all_of_them())
    finally:
        assert activity.outside == 0
        endpoint.close()
        threads.close()


def spoken(played: Trajectory) -> list[str]:
    """Return what the policy said in the turns that are recorded."""
    return [renderer().encoder.decode(turn.completion_ids).removesuffix("<|im_end|>") for turn in played.turns]


def test_one_turn_is_scored_by_the_taskset_and_recorded_token_by_token() -> None:
    seeds = range(12)
    played = play(lambda told: "tide", "echo_v1", seeds)
    assert {one.status for one in played} == {Status.COMPLETED}, [one.error for one in played]
    words = [one.messages[-1]["content"] for one in played]
    assert len(set(words)) > 2
    assert [one.score for one in played] == [shared("tide", word) for word in words] and 1.0 in [
        one.score for one in played
    ]
    for one in played:
        assert one.messages[0] == {"role": "system", "content": "Say it again."} and spoken(one) == ["tide"]
        assert one.metrics["letters"] == 4 and one.metrics["echoed"] == one.score and one.metrics["turns"] == 1
        (sample,) = samples_from(one)
        trained = [token for token, mask in zip(sample.token_ids, sample.response_mask, strict=True) if mask]
        assert trained == one.turns[0].completion_ids
    again = play(lambda told: "tide", "echo_v1", seeds)
    assert [one.messages for one in again] == [one.messages for one in played]


def shared(said: str, word: str) -> float:
    return sum(one == other for one, other in zip(said, word, strict=False)) / max(len(word), len(said))


def test_a_seat_that_is_not_trained_is_answered_and_not_recorded() -> None:
    told: list[str] = []

    def sing(prompt: str) -> str:
        told.append(prompt)
        return "la la"

    (played,) = play(sing, "duet_v1")
    assert (played.status, played.score) == (Status.COMPLETED, 1.0 + 3.0), played.error
    assert len(told) == 2 and "Go on: la la" in told[1]
    assert len(played.turns) == 1 and "Sing line" in played.turns[0].observation
    assert sum(sum(sample.response_mask) for sample in samples_from(played)) == len(played.turns[0].completion_ids)
