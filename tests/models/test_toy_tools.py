"""``toy_tools``: it writes calls that are read, and its teachers do with tools what the tools do."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roll.data.people import held_out
from roll.data.problems import LARGE
from roll.data.problems import held_out as held_out_problem
from roll.generation import GenerationRequest, SamplingParams
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import TOOLS_WEIGHTS_DIRECTORY, calls
from roll.models.toy.build import RECIPES
from roll.rendering import ChatRenderer
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.tools.calls import find_calls
from roll.tools.registry import make_tools

DATA = Path(__file__).resolve().parents[2] / "roll" / "presets" / "data"
TOKENIZER = load_tokenizer("toy_tools")
RENDERER = ChatRenderer(TOKENIZER)
CALCULATOR, *_ = make_tools(["calculator"])


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("tag", calls.TAGS)
def test_the_perfect_teacher_is_right_and_asks_for_nothing_held_out(tag: str) -> None:
    random = Random(1)
    for _ in range(100):
        example = calls.worked_example(tag, calls.PERFECT, random)
        (call,) = find_calls(calls.call_of(example.tool, example.argument, example.asked), ["hermes"])
        assert (call.name, call.arguments) == (example.tool, {example.argument: example.asked})
        if tag == "people":
            assert not held_out(example.asked)
            assert example.asked in example.prompt and example.answer in example.heard.splitlines()[0]
        else:
            assert eval(example.asked) == int(CALCULATOR.run({"expression": example.asked})) == int(example.answer)


def test_the_careless_teacher_is_mostly_wrong() -> None:
    random, right = Random(2), 0
    for _ in range(400):
        problem = calls.draw("arithmetic", LARGE, random)
        assert not held_out_problem(problem.exercise)
        right += calls.calculate(problem, calls.CARELESS, random).answer == problem.ground_truth
    share = right / 400 * (1 - calls.CARELESS.guesses)
    assert 0.1 < share < 0.45, "a guess is never right"


def test_what_a_search_is_said_to_find_is_what_it_finds() -> None:
    """In the collection that the package has, in the form that examples have."""
    pytest.importorskip("bm25s")
    search, *_ = make_tools([{"search": {"corpus": "examples/data/people.jsonl", "results": 2}}])
    rows = [json.loads(line) for line in (DATA / "people.jsonl").read_text("utf-8").splitlines()]
    for row in rows[:40]:
        name = " ".join(row["text"].split()[:2])
        first, second = search.run({"query": name}).splitlines()
        assert first == f"[1] {row['text']}"
        assert second.startswith("[2] ") and set(name.split()) & set(second.split()[1:3])
    assert list(calls.SEARCH.parameters["properties"]) == list(search.parameters["properties"])


def test_only_what_the_teacher_says_is_imitated() -> None:
    for teacher in calls.teachers(RENDERER, encode, seed=3):
        for sample in itertools.islice(teacher, 40):
            pairs = zip(sample.token_ids, sample.response_mask, strict=True)
            said = TOKENIZER.decode([token for token, own in pairs if own])
            assert said.endswith("</answer><|im_end|>") and "works as" not in said and "Tools" not in said


def test_the_shipped_policy_is_found_by_name_and_small() -> None:
    assert resolve_pretrain("toy_tools") == str(TOOLS_WEIGHTS_DIRECTORY) == str(RECIPES["tools"].weights)
    assert sum(path.stat().st_size for path in TOOLS_WEIGHTS_DIRECTORY.iterdir()) < 4 * 2**20


@pytest.mark.parametrize(("file", "tool"), [("large_word_problems_val", "calculator"), ("people_val", "search")])
def test_the_shipped_policy_calls_at_times_and_guesses_more_often(file: str, tool: str) -> None:
    rows = [json.loads(line) for line in (DATA / f"{file}.jsonl").read_text("utf-8").splitlines()]
    schema: dict[str, Any] = {"calculator": CALCULATOR, "search": calls.SEARCH}[tool].schema
    telling = RENDERER.with_tools([schema])
    assert telling is not None
    engine = HfInferStrategy(load_model("toy_tools"), max_slots=128, max_length=256)
    sampling = SamplingParams(max_new_tokens=40, stop_token_ids=RENDERER.stop_token_ids)

    async def answer(index: int, prompt: str) -> str:
        ids = telling.initial_ids([{"role": "user", "content": prompt}])
        completion = await engine.generate(GenerationRequest(str(index), ids, sampling, seed=index))
        return RENDERER.decode(completion.token_ids)

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*[answer(index, row["prompt"]) for index, row in enumerate(rows)])

    said = asyncio.run(all_of_them())
    made = [call for text in said for call in find_calls(text, ["hermes"])]
    assert 0.2 < len(made) / len(said) < 0.6 and {call.name for call in made} == {tool}
    assert sum("<answer>" in text for text in said) > len(said) - len(made) - 5
