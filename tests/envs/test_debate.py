"""Debates: each seat hears the other, and is paid for its last answer, or as a judge says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roll.envs.debate import DebateEnv
from roll.envs.errors import EnvConfigError

heard: list[str] = []
"""What the scripted speaker and the judge were told."""


def stubborn(told: str, luck: np.random.Generator) -> str:
    """A speaker who says the same whatever it hears."""
    heard.append(told)
    return "I am sure. <answer>7</answer>"


def judge_of_reasons(told: str, luck: np.random.Generator) -> str:
    """A judge who likes whoever gave a reason first."""
    heard.append(told)
    first = next(line for line in told.splitlines() if "because" in line)
    return f"[{first.removeprefix('Speaker ')[0]}]"


def silent_judge(told: str, luck: np.random.Generator) -> str:
    return "I cannot say."


@pytest.fixture
def file_name(tmp_path: Path) -> str:
    heard.clear()
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"prompt": "What is 3 + 4?", "ground_truth": "7"}) + "\n")
    return str(path)


def seated(file_name: str, **options: object) -> DebateEnv:
    return DebateEnv(file_name=file_name, seats=["policy", f"{__name__}:stubborn"], shuffle=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("last", "earned"), [("8", -1.0), ("7.0", 1.0)])
def test_the_last_answer_counts_and_each_hears_the_other(file_name: str, last: str, earned: float) -> None:
    env = seated(file_name)
    assert env.reset(seed=1)[0] == "Question: What is 3 + 4?"
    told, reward, over, _, info = env.step("It is 8. <answer>8</answer>")
    assert (told, reward, over) == ("The other speaker: I am sure. <answer>7</answer>", 0.0, False)
    assert info["metrics"]["action_is_effective"] == 1.0
    told, reward, over, _, info = env.step(f"Well. <answer>9</answer> No: <answer>{last}</answer>")
    assert (reward, over, info["metrics"]["success"]) == (earned, True, float(earned > 0))
    assert "7" not in told, "the right answer is not told"
    assert heard == [
        "Question: What is 3 + 4?\nThe other speaker: It is 8. <answer>8</answer>",
        f"The other speaker: Well. <answer>9</answer> No: <answer>{last}</answer>",
    ]
    assert [env.game.earned(seat) for seat in (0, 1)] == [earned, 1.0], "both may be right"


def test_a_speech_without_an_answer_is_heard_and_is_not_right(file_name: str) -> None:
    env = seated(file_name, rounds=1, longest=4)
    env.reset(seed=1)
    _, reward, over, _, info = env.step("seven")
    assert (reward, over, info["metrics"]["action_is_effective"]) == (-1.0, True, 0.0)
    assert heard == ["Question: What is 3 + 4?\nThe other speaker: seve"]


def test_a_judge_reads_all_of_it_and_says_who_won(file_name: str) -> None:
    env = seated(file_name, rounds=1, judge=f"{__name__}:judge_of_reasons")
    env.reset(seed=1)
    _, reward, over, *_ = env.step("because. <answer>8</answer>")
    assert (reward, over) == (1.0, True) and env.game.earned(1) == -1.0
    assert heard[-1].splitlines()[:3] == [
        "Question: What is 3 + 4?",
        "Speaker 0: because. <answer>8</answer>",
        "Speaker 1: I am sure. <answer>7</answer>",
    ]
    env = seated(file_name, rounds=1, judge=f"{__name__}:silent_judge")
    env.reset(seed=1)
    env.step("<answer>7</answer>")
    assert [env.game.earned(seat) for seat in (0, 1)] == [-1.0, -1.0], "nobody won"


def test_a_debate_that_others_grade_pays_nobody_and_tells_each_what_it_did_not_hear(file_name: str) -> None:
    env = seated(file_name, rounds=1, judge="rewards")
    env.reset(seed=1)
    told, reward, over, _, info = env.step("<answer>7</answer>")
    assert (told, reward, over) == ("The other speaker: I am sure. <answer>7</answer>", 0.0, True)
    assert info["metrics"]["success"] == 0.0
    assert env.game.ending(1) == "The debate is over.", "it spoke last, and has heard all of it"
    assert env.graded_by_rewards and not seated(file_name).graded_by_rewards


def test_what_cannot_be_a_debate_is_told(file_name: str) -> None:
    with pytest.raises(EnvConfigError, match="judge: .*'policy': name random, a module:function"):
        seated(file_name, judge="policy")
    with pytest.raises(EnvConfigError, match="rounds=0"):
        seated(file_name, rounds=0)
    with pytest.raises(EnvConfigError, match="cannot be read"):
        DebateEnv(file_name="nowhere.jsonl")
