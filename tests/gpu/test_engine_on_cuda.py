"""``hf_infer`` on a CUDA device says what one plain forward pass says."""

from __future__ import annotations

import asyncio

import pytest
import torch

from roll.generation import GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from tests.strategies.generation.hf_infer.hf_infer_support import engine_for, full_log_probs, prompts, qwen, run_all


def requests(temperature: float) -> list[GenerationRequest]:
    sampling = SamplingParams(temperature=temperature, max_new_tokens=24)
    return [GenerationRequest(f"r{i}", prompt, sampling, seed=i) for i, prompt in enumerate(prompts(24, seed=5))]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_pass_on_the_cpu(cuda: torch.device, temperature: float) -> None:
    model = qwen(4)
    asked = requests(temperature)
    for request, completion in zip(asked, run_all(engine_for(qwen(4).to(cuda)), asked), strict=True):
        expected = full_log_probs(model, list(request.prompt_ids), completion, temperature)
        ids = torch.tensor(completion.token_ids)
        torch.testing.assert_close(
            torch.tensor(completion.logprobs), expected[torch.arange(len(ids)), ids], atol=3e-4, rtol=0
        )


def test_the_same_seeds_draw_the_same_tokens(cuda: torch.device) -> None:
    model = qwen(4).to(cuda)
    first, second = (run_all(engine_for(model), requests(1.0)) for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in second]
    assert [c.logprobs for c in first] == [c.logprobs for c in second]


def test_a_request_alone_draws_what_it_draws_among_others(cuda: torch.device) -> None:
    model, asked = qwen(4).to(cuda), requests(1.0)
    among = run_all(engine_for(model), asked)
    alone = [run_all(engine_for(model), [request])[0] for request in asked[:4]]
    assert [c.token_ids for c in alone] == [c.token_ids for c in among[:4]]


def test_new_weights_are_used_at_once(cuda: torch.device) -> None:
    request = GenerationRequest("r", [5, 6, 7], SamplingParams(temperature=0.0, max_new_tokens=16))

    async def run() -> tuple[list[int], list[int]]:
        engine = engine_for(qwen(4).to(cuda))
        before = await engine.generate(request)
        await engine.update_weights(WeightUpdate(1, qwen(9).named_parameters()))
        return before.token_ids, (await engine.generate(request)).token_ids

    before, after = asyncio.run(asyncio.wait_for(run(), 120))
    (expected,) = run_all(engine_for(qwen(9)), [request])
    assert before != after == expected.token_ids
