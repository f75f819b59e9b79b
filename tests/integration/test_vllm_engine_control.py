"""The real vLLM engine: requests that end early, freeze and go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from vllm_support import Harness, greatest_difference, needs_vllm, random_prompt, shared_harness

from roll.generation import Completion, SamplingParams

pytestmark = needs_vllm

LONG = 700


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> Harness:
    return shared_harness(request.config)


async def start(vllm: Harness, **sampling: Any) -> tuple[str, asyncio.Task[Completion]]:
    """Start a long request; return its id and its task when some tokens are there."""
    already = vllm.engine.metrics()["generated_tokens"]
    request = vllm.request(random_prompt(20, 1), seed=1, **{"max_new_tokens": LONG, **sampling})
    task = asyncio.create_task(vllm.engine.generate(request))
    while vllm.engine.metrics()["generated_tokens"] < already + 20:
        await asyncio.sleep(0.005)
    return request.request_id, task


def test_abort_ends_a_request_with_what_it_has(vllm: Harness) -> None:
    async def scenario() -> Completion:
        request_id, task = await start(vllm)
        await vllm.engine.abort(request_id)
        return await task

    got = vllm.run(scenario())
    assert got.finish_reason == "abort" and len(got.logprobs) == len(got.token_ids) >= 20
    assert greatest_difference(vllm.model, random_prompt(20, 1), got, SamplingParams()) < 1e-4


def test_cancelling_the_caller_ends_the_request(vllm: Harness) -> None:
    async def scenario() -> int:
        _, task = await start(vllm)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # A request for a single token makes the engine tell what runs.
        await vllm.engine.generate(vllm.request([5], max_new_tokens=2))
        return vllm.engine._engine.get_num_unfinished_requests()

    assert vllm.run(scenario()) == 0
    assert vllm.engine.metrics()["active"] == 0


@pytest.mark.exhaustive
def test_a_sleeping_engine_goes_on_after_it_wakes(vllm: Harness) -> None:
    async def scenario() -> Completion:
        _, task = await start(vllm)
        await vllm.engine.sleep()
        await asyncio.sleep(0.2)
        assert not task.done()
        await vllm.engine.wake()
        return await task

    got = vllm.run(scenario())
    assert len(got.token_ids) == LONG
    assert greatest_difference(vllm.model, random_prompt(20, 1), got, SamplingParams()) < 1e-4
