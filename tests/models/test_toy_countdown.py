"""``toy_countdown``: it tries with a calculator, its teachers do what they say, and it begins with guesses."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from random import Random

from roll.data.countdown import PLANS, draw_puzzle, expression, held_out
from roll.generation import GenerationRequest, SamplingParams
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import COUNTDOWN_WEIGHTS_DIRECTORY, tries
from roll.models.toy.build import RECIPES
from roll.models.toy.calls import telling
from roll.rendering import ChatRenderer
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.tools.calls import find_calls
from roll.tools.registry import make_tools

DATA = Path(__file__).resolve().parents[2] / "roll" / "presets" / "data"
TOKENIZER = load_tokenizer("toy_countdown")
RENDERER = ChatRenderer(TOKENIZER)
CALCULATOR, *_ = make_tools(["calculator"])


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def test_the_perfect_teacher_tries_in_order_until_it_is_right() -> None:
    random = Random(1)
    for _ in range(200):
        puzzle = draw_puzzle(random)
        assert not held_out(puzzle.numbers)
        tried = tries.tries(puzzle, tries.PERFECT, random)
        assert tried == [expression(puzzle.numbers, plan) for plan in PLANS[: len(tried)]]
        assert [eval(each) == puzzle.target for each in tried] == [False] * (len(tried) - 1) + [True]


def test_the_careless_teacher_is_mostly_wrong() -> None:
    random, right = Random(2), 0
    for _ in range(1000):
        puzzle = draw_puzzle(random)
        answer = tries.tries(puzzle, tries.CARELESS, random)[-1]
        right += eval(answer) == puzzle.target
    assert 0.2 < right / 1000 < 0.4


def test_only_what_the_teacher_says_is_imitated() -> None:
    for teacher in tries.teachers(RENDERER, encode, seed=3):
        for sample in itertools.islice(teacher, 60):
            pairs = zip(sample.token_ids, sample.response_mask, strict=True)
            said = RENDERER.decode([token for token, own in pairs if own])
            assert said.endswith("</answer>") and "Make" not in said and "Tools" not in said
            assert len(find_calls(said, ["hermes"])) == RENDERER.decode(sample.token_ids).count("<|im_start|>tool")


def test_the_shipped_policy_is_found_by_name_and_small() -> None:
    assert resolve_pretrain("toy_countdown") == str(COUNTDOWN_WEIGHTS_DIRECTORY) == str(RECIPES["countdown"].weights)
    assert sum(path.stat().st_size for path in COUNTDOWN_WEIGHTS_DIRECTORY.iterdir()) < 4 * 2**20


def test_every_number_is_one_token() -> None:
    assert all(len(encode(str(number))) == 1 for number in range(421))


def test_the_shipped_policy_tries_at_times_and_guesses_more_often() -> None:
    rows = [json.loads(line) for line in (DATA / "countdown_val.jsonl").read_text("utf-8").splitlines()][:128]
    engine = HfInferStrategy(load_model("toy_countdown"), max_slots=128, max_length=256)
    sampling = SamplingParams(max_new_tokens=24, stop_token_ids=RENDERER.stop_token_ids)

    async def answer(renderer: ChatRenderer, index: int, prompt: str) -> str:
        ids = renderer.initial_ids([{"role": "user", "content": prompt}])
        completion = await engine.generate(GenerationRequest(str(index), ids, sampling, seed=index))
        return RENDERER.decode(completion.token_ids)

    async def all_of_them(renderer: ChatRenderer) -> list[str]:
        return await asyncio.gather(*[answer(renderer, index, row["prompt"]) for index, row in enumerate(rows)])

    said = asyncio.run(all_of_them(telling(RENDERER, CALCULATOR)))
    made = [call for text in said for call in find_calls(text, ["hermes"])]
    assert 0.2 < len(made) / len(said) < 0.6
    assert sum("<answer>" in text for text in said) > len(said) - len(made) - 5
    without = asyncio.run(all_of_them(RENDERER))
    assert sum("<answer>" in text for text in without) > 120
    assert not any(find_calls(text, ["hermes"]) for text in without)
