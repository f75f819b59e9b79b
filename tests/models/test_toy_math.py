"""The arithmetic teacher, and the policy it started."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from pathlib import Path
from random import Random

import pytest
import torch

from roll.data.problems import GENERATORS, LETTERS, LEVELS, Exercise, Problem, draw, make_exercise
from roll.generation import GenerationRequest, SamplingParams
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import MATH_WEIGHTS_DIRECTORY
from roll.models.toy.arithmetic import (
    CARELESS,
    MISSES,
    PERFECT,
    Habits,
    corpus,
    demonstrations,
    respond,
    teachers,
    work_out,
)
from roll.models.toy.build import RECIPES, build
from roll.rendering import ChatRenderer
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.trajectories.batch import collate

TOKENIZER = load_tokenizer("toy_math")
RENDERER = ChatRenderer(TOKENIZER)
FORMAT = re.compile(r"<think>(?P<think>[^<>]+)</think><answer>(?P<answer>[^<>]+)</answer>")
VALIDATION = Path(__file__).resolve().parents[2] / "roll" / "presets" / "data" / "arithmetic_val.jsonl"


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def problems(count: int, seed: int = 0) -> list[Problem]:
    random = Random(seed)
    kinds = itertools.cycle(itertools.product(GENERATORS, LEVELS))
    return [draw(tag, level, random) for tag, level in itertools.islice(kinds, count)]


def test_working_is_right_for_every_sum_difference_and_product_of_two_digits() -> None:
    for first, second in itertools.product(range(100), repeat=2):
        for operator in "+-" if first >= second else "+":
            exercise = Exercise((first, second), operator)
            assert work_out(exercise)[1] == exercise.answer, exercise
        if second < 10:
            exercise = Exercise((first, second), "*")
            assert work_out(exercise)[1] == exercise.answer, exercise


def test_every_written_step_is_true_and_each_is_one_look_up() -> None:
    random = Random(0)
    for _ in range(2000):
        exercise = make_exercise(random.choice(LEVELS), random)
        steps, value = work_out(exercise)
        assert value == exercise.answer and steps
        for step in steps:
            left, right = step.split("=")
            assert eval(left) == int(right), step
            assert len(left) <= 5, step


def test_steps_are_written_as_documented() -> None:
    assert work_out(Exercise((47, 38), "+")) == (["7+8=15", "4+3+1=8"], 85)
    assert work_out(Exercise((52, 38), "-")) == (["12-8=4", "5-3-1=1"], 14)
    assert work_out(Exercise((47, 6), "*")) == (["7*6=42", "4*6=24", "24+4=28"], 282)
    assert work_out(Exercise((6, 7, 35), "*+")) == (["6*7=42", "2+5=7", "4+3=7"], 77)


def test_a_slip_is_carried_into_the_answer() -> None:
    assert work_out(Exercise((47, 38), "+"), lambda value: value + 1) == (["7+8=16", "4+3+1=9"], 96)
    random = Random(0)
    for _ in range(2000):
        steps, value = work_out(make_exercise(random.choice(LEVELS), random), lambda value: max(value - 2, 0))
        assert value >= 0 and all(int(step.split("=")[1]) >= 0 for step in steps)


def test_a_perfect_teacher_is_right_and_keeps_the_format() -> None:
    random = Random(1)
    for problem in problems(1200):
        match = FORMAT.fullmatch(respond(problem, PERFECT, random))
        assert match is not None and match["answer"] == problem.ground_truth


def test_a_story_is_read_first_and_choices_are_compared_last() -> None:
    random = Random(2)
    for problem in problems(300):
        match = FORMAT.fullmatch(respond(problem, PERFECT, random))
        assert match is not None
        if problem.tag == "word_problems":
            assert match["think"].startswith(problem.exercise.expression.replace(" ", "") + ": ")
        if problem.tag == "multiple_choice":
            letters = LETTERS[: LETTERS.index(match["answer"]) + 1]
            scanned = " ".join(letter + choice for letter, choice in zip(letters, problem.choices, strict=False))
            assert match["think"].endswith(f" {problem.exercise.answer} {scanned}")
            assert scanned.endswith(match["answer"] + str(problem.exercise.answer))


def test_a_careless_teacher_is_wrong_as_often_as_its_habits_say() -> None:
    random = Random(3)
    guesses = Habits(guesses=(0.0, 0.9, 0.0, 0.0), forgets=0.25, slips=0.0)
    drawn = [draw("arithmetic", 2, random) for _ in range(3000)]
    answers = [(problem, respond(problem, guesses, random)) for problem in drawn]
    guessed = [each for each in answers if re.fullmatch(r"(<think>guess</think>)?<answer>\d+</answer>", each[1])]
    right = [f"<answer>{problem.ground_truth}</answer>" in answer for problem, answer in guessed]
    assert len(guessed) / 3000 == pytest.approx(0.9, abs=0.02)
    assert sum(right) / len(right) == pytest.approx(1 / len(MISSES), abs=0.03)
    assert sum(not answer.startswith("<think>") for _, answer in guessed) / len(guessed) == pytest.approx(
        0.25, abs=0.03
    )
    always = Habits(guesses=(0.0, 0.0, 0.0, 0.0), forgets=0.0, slips=1.0)
    wrong = [f"<answer>{p.ground_truth}</answer>" not in respond(p, always, random) for p in problems(900)]
    assert sum(wrong) / len(wrong) > 0.7


def test_demonstrations_train_the_answer_and_nothing_else() -> None:
    taught = itertools.islice(demonstrations(RENDERER, encode, CARELESS, seed=0), 200)
    for sample in taught:
        start = sample.response_mask.index(1)
        assert sample.response_mask == [0] * start + [1] * (len(sample) - start)
        assert TOKENIZER.decode(sample.token_ids[:start]).endswith("<|im_start|>assistant\n")
        assert sample.token_ids[-1] == RENDERER.stop_token_ids[0]
        assert len(sample) - start <= (64 if sample.tag == "multiple_choice" else 40)
        assert re.search(r"<answer>\w+</answer>", TOKENIZER.decode(sample.token_ids[start:]))


@pytest.mark.long
def test_no_validation_problem_is_ever_demonstrated() -> None:
    lines = VALIDATION.read_text("utf-8").splitlines()
    held = {"".join(re.findall(r"\d+|[-+*]", json.loads(line)["prompt"])) for line in lines}
    assert len(held) == 256
    seen = set()
    for teacher in teachers(RENDERER, encode, seed=0):
        for sample in itertools.islice(teacher, 1200):
            if sample.tag == "arithmetic":
                prompt = TOKENIZER.decode(sample.token_ids[: sample.response_mask.index(1)])
                seen.add("".join(re.findall(r"\d+|[-+*]", prompt)))
    assert len(seen) > 500 and not seen & held


def test_teachers_are_fixed_by_their_seed_and_differ() -> None:
    first = [list(itertools.islice(teacher, 20)) for teacher in teachers(RENDERER, encode, seed=5)]
    again = [list(itertools.islice(teacher, 20)) for teacher in teachers(RENDERER, encode, seed=5)]
    assert first == again and first[0] != first[1]
    batch = collate(first[0], TOKENIZER.pad_token_id)
    assert batch["response_mask"].sum() == sum(sum(sample.response_mask) for sample in first[0])


def test_digits_and_common_words_are_one_token() -> None:
    assert all(len(encode(each)) == 1 for each in "0123456789+-*=ABCD")
    assert len(encode("1234567890")) == 10
    words = "What is the many How boxes more apples marbles pencils Choose Ann Farid guess user assistant".split()
    assert [word for word in words if min(len(encode(word)), len(encode(f" {word}"))) > 1] == []
    text = "".join(map(chr, [*range(0x250), 0x20AC, 0x1F600]))
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False, clean_up_tokenization_spaces=False) == text
    assert RENDERER.bridge_problem is None


@pytest.mark.long
def test_the_math_build_is_reproducible(tmp_path: Path) -> None:
    for name in ("first", "second"):
        build(tmp_path / name, "math", steps=3, batch_size=4)
        torch.manual_seed(1234)
    files = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    ]
    assert files[0] == files[1] and "model.safetensors" in files[0]
    shipped = hashlib.sha256((MATH_WEIGHTS_DIRECTORY / "tokenizer.json").read_bytes()).hexdigest()
    assert files[0]["tokenizer.json"] == shipped, "the corpus changed: build the policy again"


def test_the_shipped_policy_is_found_by_name_and_small() -> None:
    assert resolve_pretrain("toy_math") == str(MATH_WEIGHTS_DIRECTORY) == str(RECIPES["math"].weights)
    assert load_model("toy_math").config.vocab_size == len(TOKENIZER)
    assert sum(path.stat().st_size for path in MATH_WEIGHTS_DIRECTORY.iterdir()) < 4 * 2**20
    assert next(corpus())


def sampled_accuracy(rows: list[dict], attempts: int) -> list[float]:
    """Share of right answers at temperature 1, by problem."""
    engine = HfInferStrategy(load_model("toy_math"), max_slots=256, max_length=128)
    sampling = SamplingParams(max_new_tokens=48, stop_token_ids=RENDERER.stop_token_ids)

    async def right(index: int, row: dict, attempt: int) -> bool:
        prompt = RENDERER.initial_ids([{"role": "user", "content": row["prompt"]}])
        name = f"{index}/{attempt}"
        completion = await engine.generate(GenerationRequest(name, prompt, sampling, seed=1000 * index + attempt))
        return f"<answer>{row['ground_truth']}</answer>" in RENDERER.decode(completion.token_ids)

    async def play() -> list[bool]:
        return await asyncio.gather(*[right(i, row, k) for i, row in enumerate(rows) for k in range(attempts)])

    flat = asyncio.run(play())
    return [sum(flat[i : i + attempts]) / attempts for i in range(0, len(flat), attempts)]


def test_the_shipped_policy_is_mediocre_and_has_room_to_learn() -> None:
    rows = [json.loads(line) for line in VALIDATION.read_text("utf-8").splitlines()][:96]
    shares = sampled_accuracy(rows, attempts=4)
    assert 0.3 < sum(shares) / len(shares) < 0.6
    assert sum(share > 0 for share in shares) / len(shares) > sum(shares) / len(shares) + 0.2
