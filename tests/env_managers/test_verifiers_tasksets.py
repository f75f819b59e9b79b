"""Tasksets of the real package verifiers, which is installed apart, played through the gateway by a scripted policy.

Those of the project itself are in no wheel: its published source has them, and they are played as they are.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from agent_play import answer, play_agents, renderer

from roll.env_managers import EnvManagerLimits, EpisodeSpec, Timeouts
from roll.envs import Tag, make
from roll.envs.errors import EnvConfigError
from roll.generation import Completion, GenerationRequest
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from
from tests.warm_others import environment_of, python_of

ROOT = Path(__file__).resolve().parents[2]
THEIRS = environment_of("verifiers")
TASKSETS = ROOT / "tests" / "envs" / "verifiers_tasksets"
EXAMPLES = ROOT / "examples" / "agents" / "tasksets"
FIXTURES = ROOT / ".venv" / "verifiers" / "source" / "tests" / "v1" / "fixtures"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not THEIRS.exists(), reason="verifiers is not installed: tests/envs/verifiers.txt"),
]
Say = Callable[[str], str]


def tag(taskset: str, **options: Any) -> Tag:
    paths = [str(TASKSETS), str(EXAMPLES)]
    return Tag(
        "Taskset",
        "verifiers",
        {"taskset": taskset, "python": str(python_of("verifiers")), "paths": paths, **options},
        max_steps=6,
    )


def play(say: Say, taskset: str | dict[str, Any], seeds: Sequence[int] = (0,), **options: Any) -> list[Trajectory]:
    length = options.pop("sequence_length", 3000)
    return played_by(say, tag(**{"taskset": taskset, **options}), seeds, length)


def played_by(say: Say, chosen: Tag, seeds: Sequence[int] = (0,), sequence_length: int = 3000) -> list[Trajectory]:
    """Play episodes at the same time with a policy that says what ``say`` makes of what it is told."""

    async def generate(request: GenerationRequest) -> Completion:
        return answer(say(renderer().encoder.decode(request.prompt_ids)))

    specs = [EpisodeSpec("Taskset", f"group-{seed}", 0, seed, run_seed=5) for seed in seeds]
    limits = EnvManagerLimits(max_steps=6, sequence_length=sequence_length, max_new_tokens=1300)
    return play_agents(chosen, specs, generate, limits, Timeouts(generate=20.0, reset=60.0), at_a_time=16)


def seed_of(taskset: str | dict[str, Any], task: int) -> int:
    """Return a seed that chooses a task."""
    env = make(tag(**{"taskset": taskset}))
    return next(seed for seed in range(100) if env.reset(seed=seed)[0].endswith(f": task {task}"))


def spoken(played: Trajectory) -> list[str]:
    """Return what the policy said in the turns that are recorded."""
    return [renderer().encoder.decode(turn.completion_ids).removesuffix("<|im_end|>") for turn in played.turns]


def test_one_turn_is_scored_by_the_taskset_and_recorded_token_by_token() -> None:
    seeds = range(12)
    played = play(lambda told: "tide", "echo_v1", seeds)
    assert {one.status for one in played} == {Status.COMPLETED}, [one.error for one in played]
    words = [one.messages[-1]["content"] for one in played]
    assert len(set(words)) > 2
    assert [one.score for one in played] == [alike("tide", word) for word in words] and 1.0 in [
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


@pytest.mark.exhaustive
def test_a_random_agent_plays_two_hundred_episodes() -> None:
    words = random.Random(0)
    played = play(lambda told: words.choice(["tide", "ember", "", "<answer>"]), "echo_v1", range(200))
    assert {one.status for one in played} == {Status.COMPLETED}
    assert {0.0, 1.0} <= {one.score for one in played}


def alike(said: str, word: str) -> float:
    return SequenceMatcher(None, word, said, autojunk=False).ratio()


@pytest.mark.exhaustive
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


TOOL_CALL = '<tool_call>\n{"name": "seal_stamp", "arguments": {"word": "opal"}}\n</tool_call>'
POLICIES: dict[str, Say] = {
    "echo_v1": lambda told: "embers",
    "echo_turns_v1": lambda told: "elm or oak" if "oak" in told else "one",
    "echo_tool_v1": lambda told: TOOL_CALL if "opal/" not in told else "It is opal/34.",
    "duet_v1": lambda told: "la di" if "Go on" in told else "la",
}
SEATS = {"duet_v1": ["leads", "follows"]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("taskset", POLICIES)
def test_a_taskset_earns_what_verifiers_own_evaluation_says(taskset: str, tmp_path: Path) -> None:
    """Theirs is `vf-eval`, with verifiers' own harness: a program for each turn."""
    task = 0 if taskset == "echo_tool_v1" else 1
    (ours,) = play(POLICIES[taskset], taskset, [seed_of(taskset, task)])
    assert ours.status is Status.COMPLETED, ours.error
    seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    seats = {name: seat for name in SEATS.get(taskset, ["agent"])}
    told = {
        "env": {"taskset": {"id": taskset}, **seats},
        "client": {"api_key_var": "OPENAI_API_KEY"},
        "select": {"include": {"idx": [task]}},
        "run": {"name": "run"},
        "output_dir": str(tmp_path),
        "push": False,
        "rich": None,
    }
    (tmp_path / "eval.json").write_text(json.dumps(told))
    python = python_of("verifiers")
    program = f"{python} {THEIRS.with_name('vf-eval')} @ {tmp_path}/eval.json --client.base-url $OPENAI_BASE_URL"
    words = f"PATH={python.parent}:$PATH exec {program}"
    paths = ":".join([str(TASKSETS), str(EXAMPLES)])
    command = {"command": ["sh", "-c", words], "environment": {"PYTHONPATH": paths}, "graded": True}
    (theirs,) = played_by(POLICIES[taskset], Tag("Eval", "agent", command))
    assert theirs.status is Status.COMPLETED, theirs.error
    (episode,) = map(json.loads, (tmp_path / "run" / "traces.jsonl").read_text().splitlines())
    trace = next(each for each in episode["traces"] if each["agent"]["trainable"])
    assert sum(each["score"] * each["weight"] for each in trace["rewards"].values()) == ours.score
    assert (
        ours.score and ours.metrics.items() >= {name: each["score"] for name, each in trace["rewards"].items()}.items()
    )
    assert spoken(theirs)[: len(ours.turns)] == spoken(ours)


@pytest.mark.exhaustive
def test_a_conversation_that_grows_too_long_or_takes_too_many_turns_is_scored() -> None:
    (played,) = play(lambda told: TOOL_CALL, "echo_tool_v1")
    assert (played.score, played.metrics["truncated"], len(played.turns)) == (1.0, 1.0, 6), played.error
    (played,) = play(lambda told: "oak " * 300, "echo_turns_v1", select={"limit": 1}, sequence_length=1500)
    assert (played.status, played.score) == (Status.TRUNCATED_LENGTH, 2.0 / 3), played.error


def calling(name: str, arguments: dict[str, str], result: str, then: str) -> Say:
    """Return a policy that calls a tool until it has been told ``result``, and then says something."""
    call = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return lambda told: then if result in told else call


CODEWORD, STAMP = "violet-cascade-731", "resume-ok-9d2"
resume = calling("resume_recall", {"codeword": CODEWORD}, STAMP, f"{CODEWORD} [{STAMP}]")
BASH = {"env": {"agent": {"harness": {"id": "bash"}}}}
FIXED: dict[str, tuple[Say, dict[str, Any], dict[str, float]]] = {
    "echo_v1": (lambda told: "HELLO, world! PING verifiers", {}, {"reward": 1.0, "echoed": 1.0}),
    "echo_tool_v1": (
        calling("echo_back", {"message": "hello world"}, "ok-7f3", "hello world"),
        {},
        {"reward": 1.0, "echoed": 1.0, "turns": 2.0},
    ),
    "echo_user_sim_v1": (
        lambda told: "goodbye world" if "goodbye" in told else "hello",
        {},
        {"reward": 0.5, "echoed": 0.5, "turns": 2.0},
    ),
    "echo_agentic_v1": (
        calling("bash", {"command": "echo 'hello world' > answer.txt; echo it is written"}, "it is written\n", "Done."),
        BASH,
        {"reward": 1.0, "wrote_phrase": 1.0, "turns": 2.0},
    ),
    "echo_acp_resume_v1": (
        lambda told: resume(told) if "Use your tools" in told else "READY",
        {},
        {"reward": 1.0, "resumed": 1.0, "turns": 3.0},
    ),
    "duet_v1": (
        lambda told: "hello world, ping, verifiers",
        {},
        {"reward": 1.0, "echoed": 1.0, "duet": 1.0, "turns": 1.0},
    ),
}
"""By the name of a fixture: a policy, further options of the tag, and what the taskset says of its play."""


@pytest.mark.skipif("CI" not in os.environ, reason="CI fetches the source: tests/envs/verifiers_source.txt")
def test_the_fixtures_of_verifiers_are_there() -> None:
    assert {path.stem for path in FIXTURES.glob("*.py")} >= set(FIXED)


@pytest.mark.exhaustive
@pytest.mark.skipif(not FIXTURES.is_dir(), reason="its source is not here: tests/envs/verifiers_source.txt")
@pytest.mark.parametrize("taskset", FIXED)
def test_the_fixtures_of_verifiers_are_played_as_they_are(taskset: str) -> None:
    say, options, metrics = FIXED[taskset]
    (played,) = play(say, taskset, paths=[str(FIXTURES)], **options)
    assert played.status is Status.COMPLETED, played.error
    assert {"reward": played.score, **played.metrics}.items() >= metrics.items()
    assert len(played.turns) == played.metrics["turns"]


FAILED = {
    "setup": "no disk",
    "number": "nan as ",
    "reward": "no such column",
    "process": "its process ended with 7",
    "nowhere": "",
    "slow": "",
}


def play_broken(place: str, **options: Any) -> Trajectory:
    """Play the task of a place: all of them are tasks of one process, as long as it lives."""
    taskset = {"id": "broken_v1", "places": list(FAILED)}
    (played,) = play(lambda told: "Hello", taskset, [seed_of(taskset, list(FAILED).index(place))], **options)
    return played


def test_what_fails_in_a_taskset_is_no_reward_of_zero_and_the_next_episode_is_played() -> None:
    """Also what cannot begin, and what is no number."""
    for place in ("setup", "number", "reward", "process"):
        played = play_broken(place)
        assert played.status is Status.ERROR_ENV and played.score is None and FAILED[place] in str(played.error)
    played = play_broken("nowhere")
    assert (played.status, played.score) == (Status.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"taskset": "nowhere-v1"}, "taskset 'nowhere-v1' not found"),
        pytest.param({"taskset": {"id": "echo-v1", "word": 1}}, "taskset.word", marks=pytest.mark.exhaustive),
        pytest.param({"env": {"agnt": {}}}, "agnt", marks=pytest.mark.exhaustive),
        pytest.param({"env": {"id": "nowhere"}}, "environment 'nowhere' not found", marks=pytest.mark.exhaustive),
        pytest.param({"select": {"include": {"idx": [99]}}}, "has no tasks", marks=pytest.mark.exhaustive),
        ({"python": "/nowhere/python"}, "cannot be started"),
        ({"python": sys.executable}, "No module named 'verifiers'"),
        ({"paths": "nowhere"}, "there is no folder"),
        ({"timeout": 0}, "must be greater than 0"),
    ],
)
def test_what_cannot_be_played_is_said_before_the_run(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvConfigError, match=re.escape(reason)):
        make(tag(**{"taskset": "echo_v1", **options}))


def test_an_episode_that_takes_too_long_is_ended_there_too() -> None:
    assert play_broken("slow", timeout=2.0).status is Status.ERROR_TIMEOUT
    played = play_broken("nowhere")
    assert (played.status, played.score) == (Status.COMPLETED, 1.0)
