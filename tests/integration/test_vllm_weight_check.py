"""The real vLLM engine under the check of new weights: honest updates pass, planted faults are found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm_support import Harness, needs_vllm, shared_harness

from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.pipelines.roles.weight_check import DIFFERENCE, FULL_PRECISION
from roll.strategies.base import Completion, GenerationRequest
from tests.pipelines.weight_faults import FAULTS, Engines, Trainer, check_of, found, in_turn, probes, publish

pytestmark = needs_vllm
ASKED = probes(480, 1024)
CACHED = 128
"""Tokens of the longest probe that fill a block."""


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> Harness:
    return shared_harness(request.config)


def test_faults_of_weights_are_found_and_their_tensors_named(vllm: Harness) -> None:
    trainer = Trainer(load_model("toy"))
    for fault, message in in_turn(vllm.run, trainer, Engines(vllm.engine), ASKED):
        for words in FAULTS[fault][1] if fault else ():
            assert words.lower() in message.lower(), fault
        assert bool(message) == bool(fault)
    vllm.use(vllm.model)


def test_a_stale_adapter_is_found_in_the_layers_that_have_one(vllm: Harness) -> None:
    trainer, engines = Trainer(add_adapters(load_model("toy"), 4, None, ["k_proj"], seed=1)), Engines(vllm.engine)
    trainer.step(1, size=0.02)
    before = trainer.weights()
    check = check_of(trainer, engines, ASKED)
    vllm.run(publish(check, engines, 201, before))
    assert found(check) == ""
    trainer.step(2, size=0.02)
    vllm.run(publish(check, engines, 202, before))
    assert "2 differ, layer by layer: model.layers.0.self_attn.k_proj.weight" in found(check)
    vllm.use(vllm.model)


@pytest.mark.parametrize("tells", [True, False], ids=["it says so", "its log-probs alone"])
def test_a_prefix_cache_that_outlives_its_weights_is_found(
    vllm: Harness, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    trainer, engines = Trainer(load_model("toy")), Engines(vllm.engine)
    check = check_of(trainer, engines, ASKED)
    honest = vllm.engine.generate

    async def keep(*arguments: Any, **options: Any) -> bool:
        return True

    async def generate(request: GenerationRequest) -> Completion:
        completion = await honest(request)
        return completion if tells else replace(completion, cached_tokens=0)

    trainer.step(1)
    with monkeypatch.context() as planted:
        planted.setattr(vllm.engine._engine, "reset_prefix_cache", keep)
        planted.setattr(vllm.engine, "generate", generate)
        measured = vllm.run(publish(check, engines, 301, trainer.weights()))
    assert measured[DIFFERENCE] > FULL_PRECISION
    assert (f"it kept its prefix cache, and answered from {CACHED} tokens" in found(check)) == tells
    assert "All 24 tensors that can be compared are the same in both" in found(check)
    vllm.use(vllm.model)


def test_no_false_alarm_in_two_hundred_updates(vllm: Harness) -> None:
    trainer, engines = Trainer(load_model("toy")), Engines(vllm.engine)
    check = check_of(trainer, engines, ASKED)

    async def play() -> list[float]:
        seen = []
        for version in range(401, 601):
            trainer.step(version, size=1e-5)
            seen.append((await publish(check, engines, version, trainer.weights()))[DIFFERENCE])
        return seen

    seen = vllm.run(play(), timeout=300)
    assert found(check) == ""
    assert max(seen) < FULL_PRECISION / 10
    vllm.use(vllm.model)
