"""Puzzles of Countdown: each has a solution, and those of validation have numbers that training never shows."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from random import Random
from typing import Any

from roll.data.countdown import PLANS, draw_puzzle, expression, held_out, puzzles, value
from roll.rewards.base import RewardRequest
from roll.rewards.registry import make_verifier
from roll.tools.calculator import calculator
from tests.data.test_made_up_people import rows
from tests.data.test_problems import DATA, script


def test_the_shipped_files_are_what_the_script_writes(tmp_path: Path) -> None:
    for path in script().write_puzzles(tmp_path):
        assert path.read_bytes() == (DATA / path.name).read_bytes(), f"run scripts/generate_problems.py: {path.name}"


def test_an_expression_comes_to_what_the_calculator_says() -> None:
    random = Random(0)
    for plan in PLANS:
        numbers = (random.randint(2, 20), random.randint(2, 20), random.randint(2, 20))
        assert str(value(numbers, plan)) == calculator(expression(numbers, plan))


def test_the_verifier_takes_the_solution_of_every_shipped_puzzle_and_nothing_else() -> None:
    verifier, right = make_verifier("countdown", {}), 0
    for row in itertools.chain(rows("countdown_train")[:100], rows("countdown_val")[:100]):
        first, second, third = row["nums"]
        for plan in PLANS:
            said = expression((first, second, third), plan)
            answer = f"<answer>{said}</answer>"
            request = RewardRequest(messages=[], response=answer, ground_truth=None, row=row, tag="")
            verdict = asyncio.run(_graded(verifier, request))
            assert verdict == float(eval(said) == row["target"])
            right += verdict == 1.0
    assert 200 <= right < 200 * 1.5, "a puzzle seldom has two solutions"


async def _graded(verifier: Any, request: RewardRequest) -> float | None:
    verdict = await verifier(request)
    score: float | None = verdict.score
    return score


def test_no_numbers_are_in_training_and_in_validation() -> None:
    train, val = ({tuple(row["nums"]) for row in rows(f"countdown_{split}")} for split in ("train", "val"))
    assert not train & val
    assert all(held_out(numbers) for numbers in val) and not any(held_out(numbers) for numbers in train)


def test_puzzles_are_different_and_the_same_for_a_seed() -> None:
    drawn = puzzles(300, seed=3)
    assert len(set(drawn)) == 300 and drawn == puzzles(300, seed=3) != puzzles(300, seed=4)


def test_a_guess_is_seldom_right() -> None:
    random = Random(1)
    drawn = [draw_puzzle(random) for _ in range(3000)]
    right = sum(value(puzzle.numbers, random.choice(PLANS)) == puzzle.target for puzzle in drawn)
    assert 0.08 < right / 3000 < 0.16
