"""Countdown, held against the scorer of reasoning_gym."""

from __future__ import annotations

import asyncio

import pytest

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import make_verifier


def _verdict(answer: str, target: int = 24, nums: tuple[int, ...] = (2, 3, 4), **options: float) -> Verdict:
    request = RewardRequest(
        messages=[], response=f"<answer>{answer}</answer>", row={"target": target, "nums": list(nums)}
    )
    return asyncio.run(make_verifier("countdown", options)(request))


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("2*3*4", 1.0),
        ("(2 + 3) * 4", 0.0),
        ("2*3*4 = 24", 1.0),
        ("3 × 4 × 2", 1.0),
        ("24", 0.0),  # not the numbers that were given
        ("2*12", 0.0),
        ("2*3*4*1", 0.0),
        ("__import__('os')", 0.0),
        ("4/(3-3)", 0.0),
        ("2**3", 0.0),
        ("", 0.0),
    ],
)
def test_each_number_is_used_once_and_the_target_is_met(answer: str, score: float) -> None:
    assert _verdict(answer).score == score


def test_fractions_are_exact() -> None:
    assert _verdict("8/(3-8/3)", nums=(8, 3, 8, 3)).score == 1.0


def test_an_expression_that_is_wrong_may_earn_a_part() -> None:
    assert _verdict("2+3+4", partial=0.1).score == 0.1
    assert _verdict("no idea", partial=0.1).score == 0.0


def test_a_row_without_numbers_is_not_graded() -> None:
    request = RewardRequest(messages=[], response="<answer>1</answer>", ground_truth="1")
    assert asyncio.run(make_verifier("countdown")(request)).score is None


def test_the_ground_truth_may_hold_both() -> None:
    request = RewardRequest(
        messages=[], response="<answer>2*3*4</answer>", ground_truth='{"target": 24, "numbers": [4, 3, 2]}'
    )
    assert asyncio.run(make_verifier("countdown")(request)).score == 1.0


def test_the_scorer_of_reasoning_gym_agrees() -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    data = reasoning_gym.create_dataset("countdown", size=20, seed=3)
    for row in data:
        asked = row["metadata"]
        for answer in (asked["expression"], f"{asked['expression']} + 1", "1 + 1"):
            ours = _verdict(answer, asked["target"], tuple(asked["numbers"])).score
            theirs = data.score_answer(answer, row)
            assert (ours == 1.0) == (theirs == 1.0), (answer, asked)
