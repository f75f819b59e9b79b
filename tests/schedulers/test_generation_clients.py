"""What schedulers rely on of an engine, of the double that their tests use and of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from scheduler_fakes import FakeReplica

from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.schedulers.replicas import GenerationClient

LONG = 400


@pytest.fixture(params=["double", pytest.param("hf_infer", marks=pytest.mark.heavy)])
def client(request: pytest.FixtureRequest) -> GenerationClient:
    if request.param == "double":
        return FakeReplica(lambda request: 8.0 if request.sampling.max_new_tokens == LONG else 0.001)
    from roll.models.loading import load_model
    from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

    return HfInferStrategy(load_model("toy"), max_slots=4, max_length=512)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 200))


def request(name: str, tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(name, [5, 6], SamplingParams(max_new_tokens=tokens))


async def begun(client: GenerationClient, name: str) -> asyncio.Task[Completion]:
    task = asyncio.create_task(client.generate(request(name, LONG)))
    await client.generate(request("beside it"))
    assert not task.done()
    return task


def test_a_completion_has_a_log_prob_for_each_of_its_tokens_and_no_more_than_asked_for(
    client: GenerationClient,
) -> None:
    got = run(client.generate(request("a")))
    assert 0 < len(got.token_ids) == len(got.logprobs) <= 3
    assert got.finish_reason in ("stop", "length")
    assert got.policy_version[0] <= got.policy_version[1]


def test_an_abort_ends_a_request_and_forgets_ids_that_nobody_has(client: GenerationClient) -> None:
    async def scenario() -> Completion:
        await client.abort("a")
        task = await begun(client, "a")
        await client.abort("a")
        return await asyncio.wait_for(task, 6)

    got = run(scenario())
    assert got.finish_reason == "abort"
    assert len(got.token_ids) == len(got.logprobs) < LONG


def test_cancelling_the_caller_frees_the_id(client: GenerationClient) -> None:
    async def scenario() -> Completion:
        task = await begun(client, "a")
        with pytest.raises(ValueError, match="already running"):
            await client.generate(request("a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.release("nobody has this session")
        return await client.generate(request("a"))

    assert run(scenario()).finish_reason != "abort"
