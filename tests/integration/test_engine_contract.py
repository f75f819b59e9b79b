"""What every generation engine does, real or double: tokens, log-probs, and where a completion ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
from engines import MAX_LENGTH, EngineUnderTest, random_prompt

from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.base import GenerationStrategy


def test_greedy_tokens_and_log_probs_are_the_models_in_a_crowd(engine: EngineUnderTest) -> None:
    assert isinstance(engine.engine, GenerationStrategy)
    prompts = [random_prompt(1 + 9 * number, number) for number in range(20)]
    greedy = SamplingParams(max_new_tokens=24, temperature=0.0)
    requests = [GenerationRequest(f"g{number}", prompt, greedy) for number, prompt in enumerate(prompts)]
    for prompt, got in zip(prompts, engine.all_at_once(requests), strict=True):
        assert got.token_ids == engine.says.greedy(prompt, 24)
        assert engine.difference(prompt, got, greedy) < 1e-4
        assert (got.finish_reason, got.policy_version) == ("length", (engine.version, engine.version))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_log_probs_are_those_of_the_distribution_drawn_from(engine: EngineUnderTest, temperature: float) -> None:
    sampling = SamplingParams(max_new_tokens=40, temperature=temperature)
    others = SamplingParams(max_new_tokens=40, temperature=0.0)
    prompts = [random_prompt(30, number) for number in range(6)]
    requests = [
        GenerationRequest(f"c{number}", prompt, sampling if number % 2 else others, seed=number)
        for number, prompt in enumerate(prompts)
    ]
    for request, got in zip(requests, engine.all_at_once(requests), strict=True):
        assert len(got.token_ids) == len(got.logprobs) == 40
        assert engine.difference(request.prompt_ids, got, request.sampling) < 1e-4


@pytest.mark.parametrize(
    "restriction",
    [{"top_k": 5}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.3}, {"min_p": 0.1, "top_k": 3}],
)
def test_restricted_sampling_has_exact_log_probs_or_is_refused(
    engine: EngineUnderTest, restriction: dict[str, Any]
) -> None:
    sampling = SamplingParams(max_new_tokens=30, temperature=1.3, **restriction)
    prompt = random_prompt(30, 1)
    if not engine.refuses(max_new_tokens=30, temperature=1.3, **restriction):
        got = engine.generate(prompt, max_new_tokens=30, temperature=1.3, **restriction)
        assert engine.difference(prompt, got, sampling) < 1e-4
    if not engine.refuses(temperature=0.0, **restriction):
        # Of greedy sampling they change nothing.
        got = engine.generate(prompt, max_new_tokens=10, temperature=0.0, **restriction)
        assert got.token_ids == engine.says.greedy(prompt, 10)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(engine: EngineUnderTest) -> None:
    if not engine.keyed_noise:
        pytest.skip("has no noise that a seed keys")
    prompt, huge = random_prompt(20, 0), 2**63 + 12345
    alone = engine.generate(prompt, seed=huge, max_new_tokens=30)
    requests = [engine.request(prompt, seed=seed, max_new_tokens=30) for seed in (1, 2, huge, -3, 0)]
    answers = engine.all_at_once(requests)
    assert answers[2].token_ids == alone.token_ids
    assert len({tuple(answer.token_ids) for answer in answers}) == 5


@pytest.mark.parametrize("seed", [0, -5, 2**63, 2**64 - 1, 2**200])
def test_any_integer_is_a_seed(engine: EngineUnderTest, seed: int) -> None:
    assert len(engine.generate([5], seed=seed, max_new_tokens=2).token_ids) == 2


def test_no_stop_token_comes_before_the_least_tokens_and_log_probs_say_so(engine: EngineUnderTest) -> None:
    prompt = random_prompt(12, 9)
    stop = engine.says.greedy(prompt, 1)[0]
    for temperature in (0.0, 1.0):
        asked = {"max_new_tokens": 20, "temperature": temperature, "stop_token_ids": (1, stop), "min_new_tokens": 5}
        if engine.refuses(**asked):
            continue
        got = engine.generate(prompt, **asked)
        assert len(got.token_ids) >= 5
        assert not {1, stop} & set(got.token_ids[:5])
        assert engine.difference(prompt, got, SamplingParams(**asked)) < 1e-4


def test_a_stop_token_ends_the_completion_and_stays_in_it(engine: EngineUnderTest) -> None:
    prompt = random_prompt(12, 9)
    free = engine.says.greedy(prompt, 30)
    for stop in (free[0], free[7], free[-1]):
        got = engine.generate(prompt, max_new_tokens=30, temperature=0.0, stop_token_ids=(1, stop))
        assert got.token_ids == free[: free.index(stop) + 1]
        assert len(got.logprobs) == len(got.token_ids)
        assert got.finish_reason == "stop"


def test_the_models_own_end_token_ends_a_completion_only_if_the_request_says_so(engine: EngineUnderTest) -> None:
    prompt = engine.leads_to_end
    free = engine.says.greedy(prompt, 8)
    assert engine.end_token in free[:-1]
    for stops in ((), (1,)):
        got = engine.generate(prompt, max_new_tokens=8, temperature=0.0, stop_token_ids=stops)
        assert (got.token_ids, got.finish_reason) == (free, "length")
    got = engine.generate(prompt, max_new_tokens=8, temperature=0.0, stop_token_ids=(engine.end_token,))
    assert (got.token_ids, got.finish_reason) == (free[: free.index(engine.end_token) + 1], "stop")


@pytest.mark.parametrize("room", [1, 2, 5, 6])
def test_a_completion_ends_where_the_sequence_is_full(engine: EngineUnderTest, room: int) -> None:
    prompt = random_prompt(MAX_LENGTH - room, 1)
    got = engine.generate(prompt, max_new_tokens=50, temperature=0.0)
    assert (len(got.token_ids), got.finish_reason) == (room, "length")
    assert engine.difference(prompt, got, SamplingParams(temperature=0.0)) < 1e-4


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], {}, "empty prompt"),
        ([5] * MAX_LENGTH, {}, "leaves no room in max_length"),
        ([-1], {}, "outside the vocabulary"),
        ([5, 100_000], {}, "outside the vocabulary"),
        ([5], {"max_new_tokens": 0}, "max_new_tokens"),
        ([5], {"temperature": -1.0}, "temperature"),
        ([5], {"temperature": math.nan}, "temperature"),
        ([5], {"top_p": 0.0}, "top_p"),
        ([5], {"top_p": 1.5}, "top_p"),
    ],
)
def test_a_request_without_meaning_is_refused_and_harms_nobody(
    engine: EngineUnderTest, prompt: list[int], sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        engine.generate(prompt, **sampling)
    assert engine.generate([5, 6], max_new_tokens=3, temperature=0.0).token_ids == engine.says.greedy([5, 6], 3)


def test_a_prompt_may_have_the_last_id_of_the_vocabulary(engine: EngineUnderTest) -> None:
    last = engine.vocabulary - 1
    assert engine.generate([5, last], max_new_tokens=2, temperature=0.0).token_ids == engine.says.greedy([5, last], 2)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        engine.generate([5, last + 1])


def test_a_text_ends_the_completion_with_the_token_that_completes_it_or_is_refused(engine: EngineUnderTest) -> None:
    if engine.refuses(stop_strings=("never said",)):
        return
    prompt = random_prompt(14, 4)
    free = engine.says.greedy(prompt, 40)
    for first, last in ((0, 0), (9, 11), (30, 33)):
        # Within the first token of the text, so that the text begins and ends inside tokens.
        text = engine.decode(free[first : last + 1])[1:] or engine.decode(free[first : last + 1])
        end = next(count for count in range(1, 41) if text in engine.decode(free[:count]))
        got = engine.generate(prompt, max_new_tokens=40, temperature=0.0, stop_strings=("never said", text))
        assert (got.token_ids, got.finish_reason) == (free[:end], "stop")
        assert engine.difference(prompt, got, SamplingParams(temperature=0.0)) < 1e-4
    got = engine.generate(prompt, max_new_tokens=40, temperature=0.0, stop_strings=("never said",))
    assert (got.token_ids, got.finish_reason) == (free, "length")


def test_requests_that_end_at_texts_leave_others_alone(engine: EngineUnderTest) -> None:
    if engine.refuses(stop_strings=("never said",)):
        pytest.skip("its description refuses texts that end completions")
    prompt = random_prompt(14, 4)
    free = engine.says.greedy(prompt, 40)
    text = engine.decode(free[5:7])
    asked = [{"stop_strings": (text,)}, {}, {"stop_token_ids": (free[3],)}, {"stop_strings": (text,)}]
    requests = [engine.request(prompt, max_new_tokens=40, temperature=0.0, **more) for more in asked]
    reasons = [got.finish_reason for got in engine.all_at_once(requests)]
    assert reasons == ["stop", "length", "stop", "stop"]


def test_an_empty_text_is_refused(engine: EngineUnderTest) -> None:
    if not engine.refuses(stop_strings=("",)):
        with pytest.raises(ValueError, match="an empty text"):
            engine.generate([5], stop_strings=("",))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_repetition_penalty_is_that_of_hugging_face_or_refused(engine: EngineUnderTest, temperature: float) -> None:
    prompt = random_prompt(20, 2)
    sampling = {"max_new_tokens": 30, "temperature": temperature, "repetition_penalty": 1.5}
    if not engine.refuses(**sampling):
        got = engine.generate(prompt, seed=3, **sampling)
        assert engine.difference(prompt, got, SamplingParams(**sampling)) < 1e-4
        if temperature == 0.0:
            assert got.token_ids != engine.says.greedy(prompt, 30)
    with pytest.raises(ValueError, match="repetition_penalty"):
        engine.generate(prompt, repetition_penalty=0.0)
