"""The real vLLM engine: new weights by every way that there is, and nothing left of the old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from vllm_support import (
    GREEDY,
    LONG_PROMPT,
    Harness,
    changed_model,
    check_answers,
    greedy_tokens,
    log_probs,
    needs_vllm,
    sender_to,
    shared_harness,
    sync_processes,
    worker_place,
    worker_receiver,
)

from roll.distributed.weight_sync import Place, WeightReceiver, WeightSender, WeightSyncSettings, describe
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.vllm.errors import GenerationError, WeightLoadError
from tests.rings import exhaustive_but

pytestmark = needs_vllm


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> Harness:
    return shared_harness(request.config)


def test_streamed_tensors_replace_all_weights_and_the_cached_prefixes(vllm: Harness) -> None:
    vllm.generate(LONG_PROMPT, max_new_tokens=1)
    answers = []
    for seed in (1, 2):
        vllm.use(changed_model(seed))
        check_answers(vllm, vllm.model, vllm.version)
        answers.append(tuple(greedy_tokens(vllm.model, LONG_PROMPT, 16)))
    assert answers[0] != answers[1]


@pytest.mark.parametrize("method", ["in_process", "broadcast", "checkpoint"])
def test_the_strategy_takes_weights_from_a_receiver(vllm: Harness, tmp_path: Path, method: str) -> None:
    model, new_version = changed_model(4), vllm.version + 1
    here = Place.here() if method == "in_process" else Place("elsewhere", 1)
    settings = WeightSyncSettings(method=method, directory=tmp_path, host="127.0.0.1", timeout=30)  # type: ignore[arg-type]
    sender = WeightSender(describe(model.named_parameters()), {"engine": here}, settings)
    receiver = WeightReceiver(sender.offer, "engine")

    async def sync() -> int:
        sent = asyncio.create_task(asyncio.to_thread(sender.send, new_version, model.named_parameters()))
        version = await receiver.update(vllm.engine)
        await sent
        return version

    try:
        assert vllm.run(sync()) == new_version
    finally:
        receiver.close()
        sender.close()
    vllm.model, vllm.version = model, new_version
    check_answers(vllm, model, new_version)


@pytest.mark.parametrize("method", exhaustive_but(["broadcast", "checkpoint"], "broadcast"))
def test_weights_arrive_in_the_engines_own_processes_while_requests_are_frozen(
    vllm: Harness, tmp_path: Path, method: str
) -> None:
    places = vllm.run(vllm.engine.call_workers(worker_place))
    assert {place.pid for place in places} <= {process.pid for process in vllm.processes()}
    settings = WeightSyncSettings(method=method, directory=tmp_path, timeout=30)  # type: ignore[arg-type]
    old, first, second = vllm.model, changed_model(5), changed_model(6)
    version = vllm.version
    sender = sender_to(places, first, settings)

    async def scenario() -> Completion:
        await vllm.engine.connect_workers(partial(worker_receiver, sender.offer))
        task = await running(vllm, 500)
        await sync_processes(vllm, sender, first, version + 1)
        return await task

    try:
        spanning = vllm.run(scenario())
        assert spanning.policy_version == (version, version + 1)
        check_changes_once(spanning, old, first)
        vllm.run(sync_processes(vllm, sender, second, version + 2))
    finally:
        sender.close()
    vllm.model, vllm.version = second, version + 2
    check_answers(vllm, second, version + 2)


async def running(vllm: Harness, tokens: int) -> asyncio.Task[Completion]:
    """Start a request; return its task when a few tokens are there."""
    already = vllm.engine.metrics()["generated_tokens"]
    request = vllm.request(LONG_PROMPT, seed=8, max_new_tokens=tokens)
    task = asyncio.create_task(vllm.engine.generate(request))
    while vllm.engine.metrics()["generated_tokens"] < already + 20:
        await asyncio.sleep(0.005)
    return task


def check_changes_once(got: Completion, old: PreTrainedModel, new: PreTrainedModel) -> None:
    """All tokens up to some point are exactly the old model's, all later ones exactly the new one's."""
    reported = torch.tensor(got.logprobs)
    by_old = (log_probs(old, LONG_PROMPT, got.token_ids, SamplingParams()) - reported).abs() < 1e-4
    by_new = (log_probs(new, LONG_PROMPT, got.token_ids, SamplingParams()) - reported).abs() < 1e-4
    switches = [k for k in range(len(reported) + 1) if bool(by_old[:k].all()) and bool(by_new[k:].all())]
    assert switches
    assert 20 <= switches[0] < len(reported)


Tensors = dict[str, torch.Tensor]


def without(name: str, tensors: Tensors) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if key != name}


def wrong_shape(tensors: Tensors) -> Tensors:
    return {**tensors, "model.layers.1.mlp.down_proj.weight": torch.zeros(3, 5)}


def unknown_name(tensors: Tensors) -> Tensors:
    return {**tensors, "model.layers.7.mlp.down_proj.weight": torch.zeros(3, 5)}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (partial(without, "model.norm.weight"), "model.norm.weight"),
        (partial(without, "model.layers.0.self_attn.k_proj.weight"), "layers.0.self_attn.qkv_proj"),
        (wrong_shape, "AssertionError|ValueError|RuntimeError"),
        (unknown_name, "layers.7|layers"),
    ],
    ids=["missing", "missing part of a fused layer", "wrong shape", "unknown name"],
)
def test_a_bad_update_ends_requests_and_a_good_one_mends_the_engine(
    vllm: Harness, spoil: Callable[[Tensors], Tensors], message: str
) -> None:
    new, version = changed_model(9), vllm.version + 1
    tensors = {name: parameter.detach() for name, parameter in new.named_parameters()}

    async def scenario() -> None:
        task = await running(vllm, 600)
        with pytest.raises(WeightLoadError, match=message):
            await vllm.engine.update_weights(WeightUpdate(version, spoil(tensors).items()))
        with pytest.raises(GenerationError, match="failed half-way"):
            await task
        with pytest.raises(RuntimeError, match="no valid weights"):
            await vllm.engine.generate(GenerationRequest("refused", [5], GREEDY))
        await vllm.engine.update_weights(WeightUpdate(version, tensors.items()))

    vllm.run(scenario())
    vllm.model, vllm.version = new, version
    check_answers(vllm, new, version)


def test_many_updates_do_not_fill_the_memory(vllm: Harness) -> None:
    def resident() -> int:
        return sum(process.memory_info().rss for process in vllm.processes())

    vllm.use(vllm.model)
    before = resident()
    for _ in range(15):
        vllm.use(vllm.model)
    weights = sum(parameter.nbytes for parameter in vllm.model.parameters())
    # A leak of one copy per update would be 15 times the weights.
    assert resident() - before < 8 * weights
