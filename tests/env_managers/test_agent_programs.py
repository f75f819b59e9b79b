from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_play import answer, play_agents
from manager_fakes import Activity

from roll.env_managers import EnvManagerLimits, EpisodeSpec, Timeouts
from roll.envs import Tag, make
from roll.envs.errors import EnvConfigError
from roll.generation import Completion, GenerationRequest
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import is_trainable, samples_from

SECONDS = 5.0


async def fine(request: GenerationRequest) -> Completion:
    return answer("fine")


def play(
    program: str | None = None,
    *,
    generate: Callable[[GenerationRequest], Any] = fine,
    members: int = 1,
    limits: dict[str, Any] | None = None,
    seed: int = 11,
    at_a_time: int = 64,
    activity: Activity | None = None,
    **options: Any,
) -> list[Trajectory]:
    """Play a group of episodes at the same time."""
    named = {"program": f"agent_samples:{program}"} if program else {}
    tag = Tag("Agent", "agent", {"timeout": SECONDS, **named, **options})
    specs = [EpisodeSpec("Agent", "group", member, seed, run_seed=5) for member in range(members)]
    chosen = EnvManagerLimits(**{"max_steps": 5, "sequence_length": 1000, "max_new_tokens": 20, **(limits or {})})
    return play_agents(tag, specs, generate, chosen, Timeouts(generate=1.0), at_a_time=at_a_time, activity=activity)


def test_an_agent_in_this_process_is_recorded_turn_by_turn() -> None:
    (played,) = play("good")
    assert (played.status, played.error, played.score, played.success) == (Status.COMPLETED, None, 0.5, True)
    assert [turn.observation for turn in played.turns] == ["What of 11?", "And then?", "And then?"]
    assert [turn.reward for turn in played.turns] == [0.0, 0.0, 0.5]
    assert played.turns[-1].reward_parts == {"agent": 0.5} and played.final_observation == "fine"
    assert played.metrics == {
        "calls": 3,
        "branches": 1,
        "calls_refused": 0,
        "tokens_kept": 1,
        "success": 1,
        "words": 3,
    }
    assert [message["content"] for message in played.conversation][:3] == ["What of 11?", "fine", "And then?"]
    assert {"generate", "env", "render"} <= played.turns[0].seconds.keys()
    (sample,) = samples_from(played)
    assert sum(sample.response_mask) == played.completion_tokens > 0 and sample.policy_version == (2, 2)


def test_a_client_that_knows_an_address_and_a_key_is_enough() -> None:
    (played,) = play("plain")
    assert (played.status, played.score, len(played.turns)) == (Status.COMPLETED, 1.0, 1), played.error


def test_an_engine_does_not_wait_for_those_that_wait_for_their_turn() -> None:
    activity = Activity()

    async def when_quiet(request: GenerationRequest) -> Completion:
        await activity.quiescent()
        return await fine(request)

    played = play("good", generate=when_quiet, members=5, at_a_time=2, activity=activity)
    assert [(one.status, len(one.turns)) for one in played] == [(Status.COMPLETED, 3)] * 5


def test_members_of_a_group_begin_alike_and_keep_apart() -> None:
    first, second = play("good", members=2)
    assert first.initial_hash == second.initial_hash and first.episode != second.episode
    assert play("good", seed=12)[0].initial_hash != first.initial_hash
    assert [len(first.turns), len(second.turns)] == [3, 3]


def test_work_at_several_things_at_a_time_is_a_sample_for_each() -> None:
    (played,) = play("several")
    assert played.metrics["branches"] == 4 and len(samples_from(played)) == 4
    assert played.turns[-1].observation.startswith("Together") and played.turns[-1].reward == 1.0


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("crashes", Status.ERROR_ENV, "no such tool"),
        ("exits", Status.ERROR_ENV, "SystemExit"),
        ("silent", Status.ERROR_ENV, "OPENAI_BASE_URL"),
        ("nothing", Status.ERROR_ENV, "graded: true"),
        ("no_number", Status.ERROR_ENV, "finite number"),
    ],
)
def test_an_agent_that_fails_is_an_error_and_no_zero(program: str, status: Status, words: str) -> None:
    (played,) = play(program)
    assert (played.status, played.score) == (status, None) and not is_trainable(played)
    assert words in (played.error or "") and "Agent (group/0, seed 11" in (played.error or "")


@pytest.mark.parametrize("program", ["waits", "blocks"])
def test_an_agent_that_hangs_is_given_up(program: str) -> None:
    begun = time.monotonic()
    (played,) = play(program, timeout=0.5)
    assert time.monotonic() - begun < 1.9
    assert played.status is Status.ERROR_TIMEOUT and "env_config.timeout=0.5 s" in (played.error or "")
    assert len(played.turns) == 1 and played.score is None


def test_verifiers_may_grade_what_an_agent_does_not() -> None:
    (played,) = play("nothing", graded=True)
    assert (played.status, played.score) == (Status.COMPLETED, 0.0)


def test_an_episode_that_uses_up_its_calls_or_its_room_is_cut_and_scored() -> None:
    (many,) = play("greedy_for_calls")
    assert (many.status, many.score, len(many.turns)) == (Status.TRUNCATED_TURNS, -1.0, 5)
    (long,) = play("talks_too_much")
    assert (long.status, long.score, len(long.turns)) == (Status.TRUNCATED_LENGTH, 0.25, 1)
    assert long.metrics["calls_refused"] == 1


def test_a_call_that_nobody_waits_for_holds_nothing_up() -> None:
    async def slow(request: GenerationRequest) -> Completion:
        if request.request_id.endswith("/1"):
            await asyncio.sleep(60)
        return await fine(request)

    (played,) = play("leaves_early", generate=slow)
    assert (played.status, len(played.turns)) == (Status.COMPLETED, 1)


def test_an_answer_that_the_run_gives_up_or_that_takes_too_long_ends_the_episode() -> None:
    async def aborted(request: GenerationRequest) -> Completion:
        return Completion([], [], "abort")

    async def slow(request: GenerationRequest) -> Completion:
        await asyncio.sleep(60)
        return await fine(request)

    assert [played.status for played in play("good", generate=aborted)] == [Status.ABORTED]
    assert [played.status for played in play("good", generate=slow)] == [Status.ERROR_TIMEOUT]


def test_an_engine_that_fails_is_no_fault_of_the_agent() -> None:
    async def broken(request: GenerationRequest) -> Completion:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        play("good", generate=broken)


def test_the_seed_chooses_a_row_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": word}) + "\n" for word in ("rain", "snow", "hail")))
    (played,) = play("good", tasks=str(path))
    env = make(Tag("Agent", "agent", {"program": "agent_samples:good", "tasks": str(path)}))
    rows = [json.loads(env.reset(seed=seed)[0])["question"] for seed in range(20)]
    env.close()
    assert set(rows) == {"rain", "snow", "hail"} and played.turns[0].observation == f"What of {rows[11]}?"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either program"),
        ({"program": "agent_samples:good", "command": ["true"]}, "either program"),
        ({"program": "agent_samples"}, "module:function"),
        ({"program": "agent_samples:absent"}, "cannot be imported"),
        ({"program": "agent_samples:number"}, "not a function"),
        ({"program": "agent_samples:good", "tasks": "absent.jsonl"}, "absent.jsonl"),
        ({"program": "agent_samples:good", "files": "absent"}, "no folder absent"),
        ({"command": ["no-such-program-here"]}, "no program 'no-such-program-here'"),
        ({"command": "python agent.py"}, "list of words"),
        ({"program": "agent_samples:good", "timeout": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_an_agent_is_said_before_anything_is_played(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvConfigError, match=words):
        make(Tag("Agent", "agent", options))


PROGRAM = """
import json, os, sys, urllib.request

def ask(text):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

said = ask(sys.argv[1])
print("the policy says", said)
open("answer.txt", "w").write(said)
if sys.argv[1] == "crash":
    sys.exit("it broke")
json.dump({"reward": 0.75, "seed": int(os.environ["ROLL_SEED"])}, open(os.environ["ROLL_REWARD"], "w"))
"""


@pytest.mark.processes
class TestCommands:
    @pytest.fixture
    def files(self, tmp_path: Path) -> str:
        folder = tmp_path / "files"
        folder.mkdir()
        (folder / "agent.py").write_text(PROGRAM)
        (folder / "check.py").write_text("assert open('answer.txt').read() == 'fine'\n")
        (folder / "wrong.py").write_text("assert open('answer.txt').read() == 'wrong'\n")
        (folder / "sleep.py").write_text(PROGRAM + "\nimport time; time.sleep(60)\n")
        return str(folder)

    def test_a_command_finds_the_policy_in_its_environment(self, files: str, tmp_path: Path) -> None:
        (tmp_path / "tasks.jsonl").write_text('{"question": "Will it rain?"}\n')
        command = ["python", "agent.py", "{question}"]
        (played,) = play(command=command, files=files, tasks=str(tmp_path / "tasks.jsonl"))
        assert (played.status, played.score) == (Status.COMPLETED, 0.75), played.error
        assert played.turns[0].observation == "Will it rain?" and played.metrics["seed"] == 11
        assert played.final_observation == "the policy says fine\n"
        assert not Path(files, "answer.txt").exists()

    @pytest.mark.parametrize(("check", "score"), [("check.py", 1.0), ("wrong.py", 0.0)])
    def test_a_check_of_the_files_it_left_says_what_it_earns(self, files: str, check: str, score: float) -> None:
        command, checked = [sys.executable, "agent.py", "Hello"], ["python", check]
        (played,) = play(command=command, check=checked, files=files)
        assert (played.status, played.score, played.success) == (Status.COMPLETED, score, bool(score)), played.error

    def test_a_command_that_breaks_is_an_error_with_its_last_words(self, files: str) -> None:
        (played,) = play(command=["python", "agent.py", "crash"], files=files)
        assert played.status is Status.ERROR_ENV and played.score is None
        assert "exit code 1: …it broke" in (played.error or "")

    def test_a_command_that_hangs_is_killed(self, files: str) -> None:
        begun = time.monotonic()
        (played,) = play(command=["python", "sleep.py", "Hello"], files=files, timeout=2.0)
        assert played.status is Status.ERROR_TIMEOUT and time.monotonic() - begun < 10
