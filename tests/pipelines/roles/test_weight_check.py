"""Engines that do not have the weights that they were given are found out; honest ones are let through."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.distributed.weight_sync.probes import Probes
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.pipelines.roles.weight_check import DIFFERENCE, FULL_PRECISION, HALF_PRECISION, check_options
from roll.schedulers.replicas import ReplicaDown
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from tests.e2e.support import small_config
from tests.pipelines.roles.weight_faults import (
    FAULTS,
    TINY_VOCABULARY,
    Engines,
    Trainer,
    check_of,
    found,
    in_turn,
    probes,
    publish,
    run_async,
    same_engine_of_its_own,
    tiny_model,
)

VOCABULARY = 480


def toy_pair(engines: int = 1) -> tuple[Trainer, Engines]:
    trainer = Trainer(load_model("toy"))
    return trainer, Engines(*(HfInferStrategy(same_engine_of_its_own(trainer.model)) for _ in range(engines)))


@pytest.mark.long
def test_faults_of_weights_are_found_and_their_tensors_named() -> None:
    trainer, engines = toy_pair()
    for fault, message in in_turn(run_async, trainer, engines, probes(VOCABULARY)):
        if not fault:
            assert message == ""
            continue
        for words in FAULTS[fault][1]:
            assert words.lower() in message.lower(), fault
        assert "engine 0 does not answer as the trainer does" in message


def test_a_stale_adapter_is_found_in_the_layers_that_have_one() -> None:
    model = load_model("toy")
    trainer = Trainer(add_adapters(model, 4, None, ["v_proj"], seed=1))
    engines = Engines(HfInferStrategy(load_model("toy").requires_grad_(False)))
    trainer.step(1, size=0.02)
    before = trainer.weights()
    check = check_of(trainer, engines, probes(VOCABULARY))
    run_async(publish(check, engines, 1, before))
    assert found(check) == ""
    trainer.step(2, size=0.02)
    run_async(publish(check, engines, 2, before))
    assert "2 differ, layer by layer: model.layers.0.self_attn.v_proj.weight" in found(check)
    assert "model.layers.1.self_attn.v_proj.weight" in found(check)


def test_a_prefix_cache_that_outlives_its_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engines = toy_pair()
    monkeypatch.setattr(engines.strategies[0]._engine, "drop_prefixes", lambda: None)
    trainer.step(1)
    check = check_of(trainer, engines, probes(VOCABULARY))
    run_async(publish(check, engines, 1, trainer.weights()))
    assert "it kept its prefix cache, and answered from 143 tokens in it" in found(check)
    assert "All 24 tensors that can be compared are the same in both" in found(check)


def test_a_prefix_cache_that_outlives_its_weights_is_found_by_its_log_probs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, engines = toy_pair()
    strategy = engines.strategies[0]
    monkeypatch.setattr(strategy._engine, "drop_prefixes", lambda: None)
    honest = strategy.generate

    async def generate(request: GenerationRequest) -> Completion:
        return replace(await honest(request), cached_tokens=0)

    monkeypatch.setattr(strategy, "generate", generate)
    trainer.step(1)
    check = check_of(trainer, engines, probes(VOCABULARY))
    measured = run_async(publish(check, engines, 1, trainer.weights()))
    assert measured[DIFFERENCE] > FULL_PRECISION
    assert "differ by up to" in found(check)


def test_new_weights_under_an_old_version_are_found() -> None:
    trainer, engines = toy_pair()
    check = check_of(trainer, engines, probes(VOCABULARY))

    async def play() -> None:
        await engines.update(3, trainer.weights())
        await check.run(4)

    run_async(play())
    assert "it sampled with version 3" in found(check)


def test_every_engine_is_checked_and_the_wrong_one_named() -> None:
    trainer, engines = toy_pair(engines=3)
    before = trainer.weights()
    trainer.step(1)
    check = check_of(trainer, engines, probes(VOCABULARY))

    async def play() -> None:
        await engines.update(1, trainer.weights())
        await Engines(engines.strategies[2]).update(1, before)
        await check.run(1)

    run_async(play())
    assert "engine 2 does not answer" in found(check)


@pytest.mark.exhaustive
def test_no_false_alarm_in_two_hundred_updates_with_requests_under_way() -> None:
    trainer = Trainer(tiny_model())
    strategy = HfInferStrategy(same_engine_of_its_own(trainer.model), max_slots=16, max_length=256)
    engines = Engines(strategy)
    check = check_of(trainer, engines, probes(TINY_VOCABULARY, 256))

    async def episode(number: int) -> None:
        prompt = [5 + (number * 7 + place) % 80 for place in range(20 + number % 50)]
        while True:
            request = GenerationRequest(f"{number}", prompt, SamplingParams(max_new_tokens=30), seed=number)
            await strategy.generate(request)

    async def play() -> list[float]:
        episodes = [asyncio.ensure_future(episode(number)) for number in range(3)]
        seen = []
        for version in range(1, 201):
            trainer.step(version, size=1e-5)
            await check.prepare()
            await strategy.pause()
            await engines.update(version, trainer.weights())
            await strategy.resume()
            seen.append((await check.run(version))[DIFFERENCE])
        for task in episodes:
            task.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
        await strategy.close()
        return seen

    seen = asyncio.run(play())
    assert found(check) == ""
    assert len(seen) == 200 and max(seen) < FULL_PRECISION / 10


def test_an_engine_that_is_gone_is_passed_over() -> None:
    class Gone:
        async def generate(self, request: Any) -> Completion:
            raise ReplicaDown("gone")

        async def release(self, session: str) -> None:
            """Nothing to forget."""

    check = check_of(Trainer(load_model("toy")), Engines(Gone()), probes(VOCABULARY))

    async def play() -> dict[str, float]:
        await check.prepare()
        return await check.run(1)

    assert run_async(play()) == {}
    assert found(check) == ""


def test_a_log_prob_that_is_no_number_is_found() -> None:
    class Broken:
        async def generate(self, request: GenerationRequest) -> Completion:
            return Completion([7] * request.sampling.max_new_tokens, [float("nan")] * 4, "length", (1, 1))

        async def release(self, session: str) -> None:
            """Nothing to forget."""

    check = check_of(Trainer(load_model("toy")), Engines(Broken()), probes(VOCABULARY))
    run_async(check.run(1))
    assert "differ by up to nan" in found(check)
    assert "The engine cannot say which tensors differ." in found(check)


def test_a_change_that_no_answer_shows_is_found_by_comparing_tensors() -> None:
    trainer, engines = toy_pair()
    before = trainer.weights()
    trainer.step(1, size=1e-5)
    after = trainer.weights()
    name = "model.layers.1.self_attn.q_proj.weight"
    lost = {**after, name: before[name]}
    for compare, tensors, expected in (
        (False, lost, ""),
        (True, after, ""),
        (True, lost, f"1 differ, layer by layer: {name}"),
    ):
        check = check_of(trainer, engines, probes(VOCABULARY), tolerance=1e-3, compare_tensors=compare)
        run_async(publish(check, engines, 1, tensors))
        assert bool(found(check)) == bool(expected)
        assert expected in found(check)
    assert "does not have the trainer's weights" in found(check)


def test_where_the_trainer_sleeps_the_comparison_waits_for_it() -> None:
    trainer, engines = toy_pair()
    before = trainer.weights()
    trainer.step(1)
    check = check_of(trainer, engines, probes(VOCABULARY), trainer_sleeps=True)
    assert run_async(publish(check, engines, 1, before)) == {}
    assert found(check) == ""
    # By then the engine has given its device, and its weights, away.
    run_async(engines.update(2, trainer.weights()))
    assert run_async(check.late())[DIFFERENCE] > FULL_PRECISION
    assert "does not answer" in found(check)
    assert "Of 24 tensors, 24 differ" in found(check)


def test_probes_fit_short_sequences_and_are_the_same_at_every_check() -> None:
    for most in (3, 20, 4096):
        asked = Probes.of(range(100), most, 0.7)
        assert asked == Probes.of(range(100), most, 0.7)
        assert all(1 <= len(prompt) <= most - asked.new_tokens for prompt in asked.prompts)
    assert asked.first_request().sampling.temperature == 0.7


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({}, FULL_PRECISION),
        ({"actor_infer__model_args__dtype": "bf16"}, HALF_PRECISION),
        ({"actor_train__model_args__dtype": "bf16"}, HALF_PRECISION),
        ({"actor_infer__strategy_args__strategy_config": "{quantization: fp8}"}, None),
        ({"weight_sync__tolerance": 0.25}, 0.25),
    ],
)
def test_the_tolerance_follows_from_number_formats(tmp_path: Path, changes: dict[str, Any], tolerance: float) -> None:
    if "quantization" in str(changes):
        changes = {**changes, "actor_infer__strategy_args__strategy_name": "vllm"}
    config = small_config(tmp_path, **changes)
    options = check_options(config, range(100), None, False)
    assert options.tolerance == tolerance
    assert options.probes.prompts


def test_nothing_is_asked_where_nothing_is_to_be_checked(tmp_path: Path) -> None:
    config = small_config(tmp_path, weight_sync__verify="false")
    options = check_options(config, range(100), None, False)
    assert not options.probes.prompts


def test_fingerprints_show_an_exchange_of_rows_and_of_columns() -> None:
    from roll.strategies.fingerprints import deviations, fingerprint

    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    same = {"w": fingerprint(weight)}
    for other in (weight[[1, 0, 2, 3, 4, 5]], weight[:, [1, 0, 2, 3, 4]], weight[:, :4]):
        changed, compared = deviations(same, {"w": fingerprint(other), "unknown": torch.zeros(2)}, 1e-4)
        assert [deviation.name for deviation in changed] == ["w"] and compared == 1
    assert deviations(same, copy.deepcopy(same), 0.0) == ([], 1)
