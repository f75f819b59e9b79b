"""The real vLLM engine: tokens and log-probs are those of the Hugging Face model."""

from __future__ import annotations

import asyncio

import pytest
from vllm_support import (
    BLOCK,
    Harness,
    greatest_difference,
    needs_vllm,
    random_prompt,
    shared_harness,
)

from roll.config.errors import ConfigError
from roll.generation import GenerationRequest, SamplingParams
from roll.models.toy import WEIGHTS_DIRECTORY
from roll.strategies.generation.vllm.strategy import VllmStrategy

pytestmark = needs_vllm


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> Harness:
    return shared_harness(request.config)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_new_tokens=40),
        SamplingParams(max_new_tokens=40, temperature=0.7),
        SamplingParams(max_new_tokens=40, temperature=1.6, top_k=5),
        SamplingParams(max_new_tokens=40, temperature=1.3, top_p=0.8),
        SamplingParams(max_new_tokens=40, temperature=0.9, top_k=20, top_p=0.9),
        SamplingParams(max_new_tokens=40, temperature=0.0, top_k=3, top_p=0.5),
    ],
    ids=["plain", "temperature", "top-k", "top-p", "all", "greedy"],
)
def test_log_probs_are_those_of_the_distribution_drawn_from(vllm: Harness, sampling: SamplingParams) -> None:
    # Beside requests with other parameters, for the engine then takes another path.
    prompts = [random_prompt(30, number) for number in range(6)]

    async def crowd() -> list:
        others = [SamplingParams(max_new_tokens=40, temperature=0.0), SamplingParams(max_new_tokens=40, top_k=7)]
        requests = [
            GenerationRequest(f"c{number}", prompt, [sampling, *others][number % 3], seed=number)
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*(vllm.engine.generate(request) for request in requests))

    for number, got in enumerate(vllm.run(crowd())):
        if number % 3 == 0:
            assert greatest_difference(vllm.model, prompts[number], got, sampling) < 1e-4


def test_more_prompt_tokens_than_fit_into_a_step_are_sampled_with_seeds(vllm: Harness) -> None:
    prompts = [random_prompt(600 + number, number) for number in range(12)]

    async def crowd() -> list:
        requests = [vllm.request(prompt, seed=number, max_new_tokens=5) for number, prompt in enumerate(prompts)]
        return await asyncio.gather(*(vllm.engine.generate(request) for request in requests))

    for number, got in enumerate(vllm.run(crowd())):
        assert greatest_difference(vllm.model, prompts[number], got, SamplingParams()) < 1e-4
        assert got.token_ids == vllm.generate(prompts[number], seed=number, max_new_tokens=5).token_ids


def test_a_repeated_prompt_is_taken_from_the_cache(vllm: Harness) -> None:
    prompt = random_prompt(2 * BLOCK + 40, 77)
    before = vllm.engine.metrics()
    assert vllm.generate(prompt, max_new_tokens=1).cached_tokens == 0
    assert vllm.generate(prompt, max_new_tokens=1).cached_tokens == 2 * BLOCK
    after = vllm.engine.metrics()
    assert after["cached_tokens"] - before["cached_tokens"] == 2 * BLOCK
    assert after["prompt_tokens"] - before["prompt_tokens"] == 2 * len(prompt)
    assert after["requests"] - before["requests"] == 2
    assert after["generated_tokens"] - before["generated_tokens"] == 2
    assert after["active"] == 0
    assert 0 < after["prefix_cache_hit_rate"] < 1
    assert after["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([5], {"temperature": 0.001}, "at temperatures from 0.01 to 2.0"),
        ([5], {"temperature": 3.0}, "at temperatures from 0.01 to 2.0"),
    ],
)
def test_a_request_without_meaning_is_refused(
    vllm: Harness, prompt: list[int], sampling: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        vllm.generate(prompt, **sampling)


def test_an_option_that_would_end_the_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave the key out on CPUs"):
        VllmStrategy(WEIGHTS_DIRECTORY, strategy_config={"enable_chunked_prefill": True})


def test_a_key_that_the_installed_engine_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gpu_memory_utilization'"):
        VllmStrategy(WEIGHTS_DIRECTORY, strategy_config={"gpu_memory_utilisation": 0.5})


def test_a_device_that_the_installed_engine_does_not_run_on_is_refused() -> None:
    with pytest.raises(ValueError, match="runs on cpu"):
        VllmStrategy(WEIGHTS_DIRECTORY, device="cuda:0")


def test_another_event_loop_is_refused(vllm: Harness) -> None:
    vllm.generate([5], max_new_tokens=1)
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(vllm.engine.generate(vllm.request([5], max_new_tokens=1)))
