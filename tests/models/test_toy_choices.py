"""The teacher of multiple choice, and the policy it started."""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path
from random import Random

import pytest

from roll.data.problems import LETTERS, LEVELS, draw, held_out
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import CHOICES_WEIGHTS_DIRECTORY
from roll.models.toy.arithmetic import PERFECT, Habits
from roll.models.toy.build_choices import Stage, build
from roll.models.toy.choices import CARELESS, TAG, demonstrations, drills, respond
from roll.rendering import ChatRenderer

TOKENIZER = load_tokenizer("toy_choices")
RENDERER = ChatRenderer(TOKENIZER)
ANSWER = re.compile(r"<think>(?P<think>[^<>]+)</think><answer>(?P<answer>[ABCD])</answer>")


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def test_a_perfect_teacher_names_the_result_and_its_letter() -> None:
    random = Random(1)
    for level in LEVELS * 100:
        problem = draw(TAG, level, random)
        match = ANSWER.fullmatch(respond(problem, PERFECT, random))
        assert match is not None and match["answer"] == problem.ground_truth
        assert match["think"].endswith(f" {problem.exercise.answer}{problem.ground_truth}")


def test_a_guess_is_right_once_in_four() -> None:
    random = Random(2)
    always = Habits(guesses=(1.0,) * 4, forgets=0.5, slips=0.0)
    drawn = [draw(TAG, 1, random) for _ in range(4000)]
    answers = [respond(problem, always, random) for problem in drawn]
    right = [f"<answer>{problem.ground_truth}</answer>" in each for problem, each in zip(drawn, answers, strict=True)]
    assert sum(right) / 4000 == pytest.approx(0.25, abs=0.03)
    assert sum(each.startswith("<answer>") for each in answers) / 4000 == pytest.approx(0.5, abs=0.03)


def test_a_careless_teacher_answers_with_a_letter_whatever_it_found() -> None:
    random = Random(3)
    answers = [respond(draw(TAG, 1, random), CARELESS, random) for _ in range(500)]
    assert all(re.fullmatch(r"(<think>[^<>]+</think>)?<answer>[ABCD]</answer>", each) for each in answers)
    assert 0.5 < sum("guess" in each or each.startswith("<answer>") for each in answers) / 500 < 0.9


def test_a_drill_trains_the_letters_behind_their_numbers_and_nothing_else() -> None:
    for sample in itertools.islice(drills(RENDERER, encode, Random(4)), 50):
        text = TOKENIZER.decode(sample.token_ids)
        listed = dict(re.findall(r"^([A-D])\) (\d+)", text, re.MULTILINE))
        found = re.findall(r"(\d+)([A-D])\b", text.split("<think>")[1])
        assert len(listed) == len(found) == 4 and all(listed[letter] == number for number, letter in found)
        trained = [token for token, mask in zip(sample.token_ids, sample.response_mask, strict=True) if mask]
        assert trained == [encode(letter)[0] for _, letter in found]


def test_no_validation_exercise_is_ever_demonstrated() -> None:
    expressions = set()
    for sample in itertools.islice(demonstrations(RENDERER, encode, PERFECT, Random(5)), 400):
        start = sample.response_mask.index(1)
        assert all(sample.response_mask[start:]) and len(sample) - start <= 48
        match = re.search(r"What is ([^?]+)\?", TOKENIZER.decode(sample.token_ids[:start]))
        assert match is not None
        expressions.add(match[1])
    random = Random(6)
    held = {draw(TAG, level, random, validation=True).exercise.expression for level in LEVELS * 200}
    assert len(expressions) > 200 and not expressions & held
    assert not held_out(draw(TAG, 1, random).exercise)


def test_letters_are_one_token_each() -> None:
    assert all(len(encode(letter)) == 1 for letter in LETTERS)


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_build_is_reproducible(tmp_path: Path) -> None:
    for name in ("first", "second"):
        build(tmp_path / name, stages=(Stage(PERFECT, 1, 1, 1, 1e-3), Stage(CARELESS, 0, 0, 1, 1e-3)), batch_size=4)
    files = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    ]
    assert files[0] == files[1]
    shipped = hashlib.sha256((CHOICES_WEIGHTS_DIRECTORY / "tokenizer.json").read_bytes()).hexdigest()
    assert files[0]["tokenizer.json"] == shipped


def test_the_shipped_policy_is_found_by_name_and_small() -> None:
    assert resolve_pretrain("toy_choices") == str(CHOICES_WEIGHTS_DIRECTORY)
    assert load_model("toy_choices").config.vocab_size == len(TOKENIZER)
    assert sum(path.stat().st_size for path in CHOICES_WEIGHTS_DIRECTORY.iterdir()) < 4 * 2**20
