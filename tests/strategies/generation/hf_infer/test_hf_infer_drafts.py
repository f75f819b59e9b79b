"""Guessing ahead changes how many steps it takes, and no token: the same noise draws each, whatever was guessed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.hf_infer import drafts
from roll.strategies.generation.hf_infer.drafts import Drafts
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from tests.rings import exhaustive_but
from tests.strategies.generation.hf_infer.hf_infer_support import VOCABULARY, engine_for, prompts, qwen, run_all

SHARP = SamplingParams(max_new_tokens=40, temperature=0.05)
"""An untrained model repeats itself then, most of the time."""


@pytest.fixture(scope="module")
def model():
    # In doubles, so that no two numbers change places because a step had more rows.
    return qwen().double()


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.finish_reason == theirs.finish_reason
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-9)


def steps(engine: HfInferStrategy) -> float:
    return engine.metrics()["steps"]


@pytest.mark.parametrize("draft_tokens", exhaustive_but([1, 3, 8], 3))
@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
def test_tokens_and_log_probs_are_those_of_one_token_at_a_time(model, draft_tokens, temperature):
    sampling = SamplingParams(max_new_tokens=40, temperature=temperature, top_k=50, top_p=0.95, stop_token_ids=(3, 7))
    asked = [
        GenerationRequest(str(i), prompt, replace(sampling, max_new_tokens=1 + 2 * i, min_new_tokens=min(i, 5)), seed=i)
        for i, prompt in enumerate(prompts(20))
    ]
    plain, guessing = engine_for(model), engine_for(model, draft_tokens=draft_tokens)
    assert_same(run_all(guessing, asked), run_all(plain, asked))
    metrics = guessing.metrics()
    assert metrics["guessed_tokens"] >= metrics["rightly_guessed_tokens"]
    assert metrics["generated_tokens"] == plain.metrics()["generated_tokens"]
    if temperature < 1:
        assert metrics["rightly_guessed_tokens"] > 0


def test_what_repeats_takes_fewer_steps(model):
    # Sooner or later an untrained model is in a circle.
    asked = [GenerationRequest("0", prompts(1)[0], SamplingParams(max_new_tokens=150, temperature=0.0))]
    plain, guessing = engine_for(model), engine_for(model, draft_tokens=4)
    assert_same(run_all(guessing, asked), run_all(plain, asked))
    assert steps(guessing) < 0.8 * steps(plain)


def test_what_another_said_is_guessed(model):
    prompt = [5, *prompts(1, 30, 30)[0]]
    engine = engine_for(model, draft_tokens=4)
    (first,) = run_all(engine, [GenerationRequest("0", prompt, replace(SHARP, temperature=0.0))])
    before = steps(engine)
    (second,) = run_all(engine, [GenerationRequest("1", prompt, replace(SHARP, temperature=0.0))])
    assert second.token_ids == first.token_ids
    assert steps(engine) - before <= 20  # of 40 tokens


def test_a_session_goes_on_after_a_stop_among_guesses(model):
    """What was guessed behind the end of a completion lies in its slot, and must not be taken for tokens."""

    def played(engine: HfInferStrategy) -> list[Completion]:
        async def main() -> list[Completion]:
            history, found = prompts(1, 20, 20)[0], []
            for turn, added in enumerate(prompts(6, 1, 9, seed=1)):
                history = [*history, *added]
                sampling = replace(SHARP, stop_token_ids=tuple(range(0, VOCABULARY, 9)))
                found.append(
                    await engine.generate(GenerationRequest(f"{turn}", list(history), sampling, seed=turn, session="s"))
                )
                history += found[-1].token_ids
            return found

        return asyncio.run(main())

    guessing = engine_for(model, draft_tokens=4)
    found, expected = played(guessing), played(engine_for(model))
    assert_same(found, expected)
    # A guess that was right is in the cache, which without one computes it with the next turn.
    assert all(ours.cached_tokens >= theirs.cached_tokens for ours, theirs in zip(found, expected, strict=True))
    assert guessing.metrics()["rightly_guessed_tokens"] > 0


@pytest.mark.parametrize("in_thread", [False, True])
def test_new_weights_in_the_middle_are_those_of_what_is_sampled_after_them(model, in_thread):
    other = qwen(1).double()
    engine = engine_for(qwen().double(), draft_tokens=4, in_thread=in_thread)
    greedy = replace(SHARP, temperature=0.0)
    asked = [GenerationRequest(str(i), prompt, greedy) for i, prompt in enumerate(prompts(6))]

    async def main() -> list[Completion]:
        answers = asyncio.gather(*(engine.generate(request) for request in asked))
        while engine.metrics()["generated_tokens"] < 40:
            await asyncio.sleep(0)
        await engine.update_weights(WeightUpdate(1, other.state_dict().items()))
        return list(await answers)

    for request, completion in zip(asked, asyncio.run(main()), strict=True):
        assert completion.policy_version[1] == 1 and len(completion.token_ids) == 40
        again = replace(request, prompt_ids=[*request.prompt_ids, *completion.token_ids[:-1]])
        (last,) = run_all(engine_for(other), [replace(again, sampling=replace(greedy, max_new_tokens=1))])
        assert last.token_ids == completion.token_ids[-1:]
        assert last.logprobs == pytest.approx(completion.logprobs[-1:], abs=1e-9)


def test_repetition_penalties_and_padded_rows_are_not_guessed_for(model):
    sampling = replace(SHARP, repetition_penalty=1.3)
    asked = [GenerationRequest(str(i), prompt, sampling, seed=i) for i, prompt in enumerate(prompts(4))]
    penalised, padded = engine_for(model, draft_tokens=4), engine_for(model, draft_tokens=4, layout="padded")
    assert_same(run_all(penalised, asked), run_all(engine_for(model), asked))
    run_all(padded, [replace(request, sampling=SHARP) for request in asked])
    assert penalised.metrics()["guessed_tokens"] == padded.metrics()["guessed_tokens"] == 0


def test_the_last_token_that_has_room_is_not_passed(model):
    prompt = [1, 2, 3] * 10
    (answer,) = run_all(
        engine_for(model, draft_tokens=8, max_length=37),
        [GenerationRequest("0", prompt, replace(SHARP, temperature=0.0))],
    )
    assert len(answer.token_ids) == 7 and answer.finish_reason == "length"


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 6))
@settings(deadline=None)
def test_a_guess_is_what_followed_the_longest_run_the_last_time(tokens: list[int], most: int) -> None:
    known = Drafts()
    for start in range(0, len(tokens), 7):
        known.add(tokens[: start + 7], start)
    expected: list[int] = []
    for length in (3, 2, 1):
        run = tokens[-length:]
        places = [end for end in range(length, len(tokens)) if tokens[end - length : end] == run]
        if places and length <= len(tokens) and not expected:
            # It was looked up in the part that was known when it was added.
            part = tokens[: (places[-1] // 7) * 7 + 7]
            expected = part[places[-1] : places[-1] + most]
            break
    assert known.guess(tokens, most) == expected


def test_pictures_are_not_guessed_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Drafts()
    known.add([1, 2, 3, -4, 5], 0)
    assert known.guess([1, 2], 5) == [3]
    assert known.guess([2, 3], 5) == [] and known.guess([9], 5) == [] and known.guess([], 5) == []
    monkeypatch.setattr(drafts, "_MOST_ENTRIES", 4)
    known.add([6, 7], 0)
    assert known.guess([1, 2], 5) == [] and known.guess([6], 5) == [7]
