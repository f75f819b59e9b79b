"""Verifiers as environments: multiple choice, and programs under unit tests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roll.envs import make
from roll.envs.errors import EnvConfigError
from roll.envs.graded import GradedProblemsEnv


def played(env: GradedProblemsEnv, *responses: str, seed: int = 0) -> tuple[str, list[Any]]:
    async def play() -> tuple[str, list[Any]]:
        observation, _ = await env.reset(seed=seed)
        return observation, [await env.step(response) for response in responses]

    return asyncio.run(play())


def test_multiple_choice_is_graded_by_the_letter() -> None:
    env = make("MultipleChoice")
    question, _ = played(env)
    (right,) = env.solution() or ()
    letter = right[len("<answer>")]
    wrong = next(each for each in "ABCD" if each != letter)
    assert "A)" in question
    for response, score in ((right, 1.0), (f"The answer is ({letter}).", 1.0), (f"<answer>{wrong}</answer>", 0.0)):
        _, [(told, reward, terminated, _, info)] = played(env, response)
        assert (reward, terminated, info["metrics"]["success"]) == (score, True, score), told


HUMAN_EVAL = {
    "prompt": 'Complete:\ndef twice(x):\n    """Return x doubled."""\n',
    "test_cases": json.dumps([{"assert_code": "assert twice(2) == 4"}, {"assert_code": "assert twice('a') == 'aa'"}]),
}


@pytest.mark.processes
def test_programs_run_in_the_sandbox_and_may_be_mended(tmp_path: Path) -> None:
    file = tmp_path / "code.jsonl"
    file.write_text(json.dumps(HUMAN_EVAL) + "\n")
    env = GradedProblemsEnv(file_name=str(file), verifier="code", max_steps=3)
    wrong = "```python\ndef twice(x):\n    return 4\n```"
    # What compares as equal to anything passes no test.
    lying = "```python\nclass Any:\n    def __eq__(self, other): return True\ndef twice(x):\n    return Any()\n```"
    right = "```python\ndef twice(x):\n    return x + x\n```"
    question, steps = played(env, lying, wrong, right)
    assert question == HUMAN_EVAL["prompt"]
    assert [terminated for _, _, terminated, _, _ in steps] == [False, False, True]
    assert sum(step[1] for step in steps) == 1.0 and steps[-1][4]["metrics"]["success"] == 1.0
    assert "Try again" in steps[0][0] and steps[0][1] == 0.0


def test_what_cannot_work_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "?"}\n')
    for options, told in (
        ({"file_name": str(file), "verifier": "multiple_choise"}, "Did you mean 'multiple_choice'"),
        ({"file_name": str(file), "verifier": "math"}, "line 1: there is no column 'prompt'"),
        ({"file_name": str(tmp_path / "none"), "verifier": "math"}, "cannot be read"),
        ({"file_name": str(file), "verifier": "multiple_choice", "options": {"letters": "AA"}}, "different letters"),
    ):
        with pytest.raises(EnvConfigError, match=told):
            GradedProblemsEnv(**options)  # type: ignore[arg-type]


def test_an_answer_that_cannot_be_graded_is_no_zero(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "?"}\n')
    with pytest.raises(RuntimeError, match="could not be graded: multiple_choice needs the column 'ground_truth'"):
        played(GradedProblemsEnv(file_name=str(file), verifier="multiple_choice"), "A")
