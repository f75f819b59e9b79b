"""The problem generator and the data sets it ships."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.data.problems import (
    GENERATORS,
    LARGE,
    LETTERS,
    LEVELS,
    SMALL,
    Exercise,
    draw,
    held_out,
    make_exercise,
    problem_set,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "roll" / "presets" / "data"
NAMES = (*GENERATORS, "sums", "small_sums", "small_stories", "large_arithmetic", "large_word_problems")
FILES = [(name, split) for name in NAMES for split in ("train", "val")]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_problems", ROOT / "scripts" / "generate_problems.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(tag: str, split: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / f"{tag}_{split}.jsonl").read_text("utf-8").splitlines()]


def numbers(row: dict) -> list[int]:
    """The numbers a prompt states, without those it offers as choices."""
    return [int(each) for each in re.findall(r"\d+", row["prompt"].split("\n")[0])]


levels = st.sampled_from((SMALL, *LEVELS, LARGE))
seeds = st.integers(0, 10**6)


@given(levels, seeds)
def test_an_expression_reads_as_python_would_and_is_never_negative(level: int, seed: int) -> None:
    exercise = make_exercise(level, Random(seed))
    assert eval(exercise.expression) == exercise.answer >= 0
    assert len(exercise.operators) == len(exercise.numbers) - 1


@given(st.sampled_from(sorted(GENERATORS)), levels, seeds)
def test_every_prompt_states_the_numbers_in_order_and_the_truth_is_the_value(tag: str, level: int, seed: int) -> None:
    problem = GENERATORS[tag](level, Random(seed))
    assert numbers(problem.row()) == list(problem.exercise.numbers)
    assert not set("{}") & set(problem.prompt)
    truth = problem.choices[LETTERS.index(problem.ground_truth)] if problem.choices else problem.ground_truth
    assert truth == str(problem.exercise.answer)
    assert (problem.tag, problem.level) == (tag, level)


@given(levels, seeds)
def test_choices_are_four_different_numbers_shown_behind_their_letters(level: int, seed: int) -> None:
    problem = GENERATORS["multiple_choice"](level, Random(seed))
    assert len(set(problem.choices)) == len(LETTERS) == 4 and all(int(choice) >= 0 for choice in problem.choices)
    shown = [f"{letter}) {choice}" for letter, choice in zip(LETTERS, problem.choices, strict=True)]
    assert problem.prompt.split("\n")[1:] == shown


def test_right_letters_are_spread_evenly() -> None:
    letters = Counter(row["ground_truth"] for row in rows("multiple_choice", "train"))
    assert set(letters) == set(LETTERS) and min(letters.values()) > 0.8 * letters.total() / 4


def test_an_unknown_level_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="level=6: use one of 0, 1, 2, 3, 4, 5"):
        make_exercise(6, Random(0))


def test_one_exercise_in_eight_is_held_out_and_order_does_not_matter() -> None:
    random = Random(0)
    drawn = {make_exercise(level, random) for level in LEVELS for _ in range(2000)}
    assert 0.10 < sum(map(held_out, drawn)) / len(drawn) < 0.15
    assert all(held_out(Exercise((a, b), "+")) == held_out(Exercise((b, a), "+")) for a in range(40) for b in range(40))
    assert any(held_out(Exercise((a, b), "-")) != held_out(Exercise((b, a), "-")) for a in range(9) for b in range(9))


@pytest.mark.parametrize("validation", [False, True])
def test_draws_keep_to_their_side(validation: bool) -> None:
    random = Random(1)
    for tag in GENERATORS:
        assert all(held_out(draw(tag, 4, random, validation=validation).exercise) == validation for _ in range(50))


def test_a_set_is_fixed_by_its_seed_and_tag() -> None:
    assert problem_set("arithmetic", 40, seed=3) == problem_set("arithmetic", 40, seed=3)
    assert problem_set("arithmetic", 40, seed=3) != problem_set("arithmetic", 40, seed=4)
    assert problem_set("arithmetic", 80, seed=3)[:40] == problem_set("arithmetic", 40, seed=3)


def test_the_shipped_files_are_what_the_script_writes(tmp_path: Path) -> None:
    written = script().write_problems(tmp_path)
    assert sorted(path.name for path in written) == sorted(f"{name}_{split}.jsonl" for name, split in FILES)
    for path in written:
        assert path.read_bytes() == (DATA / path.name).read_bytes(), f"run scripts/generate_problems.py: {path.name}"


@pytest.mark.parametrize(("name", "split"), FILES)
def test_shipped_rows_are_complete_distinct_and_cover_every_level_equally(name: str, split: str) -> None:
    data = rows(name, split)
    easy = {
        "sums": ("arithmetic", LEVELS[:1]),
        "small_sums": ("arithmetic", (SMALL,)),
        "small_stories": ("word_problems", (SMALL, *LEVELS[:1])),
        "large_arithmetic": ("arithmetic", (LARGE,)),
        "large_word_problems": ("word_problems", (LARGE,)),
    }
    tag, levels = easy.get(name, (name, LEVELS))
    keys = {"prompt", "ground_truth", "tag", "level"} | ({"choices"} if tag == "multiple_choice" else set())
    assert all(row.keys() == keys and row["tag"] == tag for row in data)
    assert len({row["prompt"] for row in data}) == len(data) >= (48 if name.startswith("small") else 128)
    assert set(Counter(row["level"] for row in data).values()) == {len(data) // len(levels)}
    assert {row["level"] for row in data} == set(levels)


def test_training_and_validation_share_no_exercise_across_all_files() -> None:
    """By the numbers of a prompt and its answer, read from the files without asking the generator."""

    def exercises(split: str) -> set[tuple]:
        found = set()
        for name in NAMES:
            for row in rows(name, split):
                answer = row["choices"][LETTERS.index(row["ground_truth"])] if "choices" in row else row["ground_truth"]
                found.add((tuple(numbers(row)), answer))
        return found

    train, val = exercises("train"), exercises("val")
    assert len(train) > 1500 and len(val) > 300 and not train & val


def test_more_problems_than_a_level_has_are_refused() -> None:
    with pytest.raises(ValueError, match="level 4 of arithmetic has no exercise"):
        problem_set("arithmetic", 2000, seed=3, levels=[4])
    assert len(problem_set("arithmetic", 500, seed=3, levels=[4])) == 500
