"""Every engine, real or double, under the check of new weights: honest updates pass, planted faults are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines import MAX_LENGTH, EngineUnderTest, HuggingFace
from sglang_support import Number, RealSglang
from tensordict import TensorDict

from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.pipelines.roles.weight_check import DIFFERENCE, FULL_PRECISION
from roll.strategies.fingerprints import Fingerprints, fingerprint
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from tests.pipelines.roles.weight_faults import (
    FAULTS,
    STEP,
    Engines,
    Tensors,
    Trainer,
    check_of,
    found,
    in_turn,
    probes,
    publish,
)

UPDATES = 60
UPDATES_OF_SGLANG = 20
"""On CPUs one takes a second."""
_DROPS_CACHE = ("drop_prefixes", "reset_prefix_cache", "drop_cache")
"""What the strategies call to have cached prefixes forgotten."""


class TrainerOfNumber:
    """The trainer of the double's model."""

    def __init__(self) -> None:
        self.number = Number(3)

    async def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        found = torch.zeros(batch["input_ids"].shape)
        for row, (ids, mask) in enumerate(zip(batch["input_ids"], batch["response_mask"], strict=True)):
            begin = int(mask.nonzero()[0])
            prompt, tokens = ids[:begin].tolist(), ids[mask].tolist()
            found[row, mask] = self.number.log_probs(prompt, tokens, SamplingParams())
        return found

    async def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        return {name: fingerprint(tensor) for name, tensor in self.weights().items()}

    def weights(self) -> Tensors:
        return dict(self.number.named_parameters())

    def step(self, seed: int, size: float = 0.0) -> None:
        self.number = Number(self.number.number % 50 + 1)


@pytest.fixture
def under_check(engine: EngineUnderTest) -> Iterator[EngineUnderTest]:
    """An engine whose weights are given back to it afterwards."""
    yield engine
    engine.says = HuggingFace(load_model("toy"))


@pytest.fixture
def trainer(under_check: EngineUnderTest) -> Any:
    """What its weights come from."""
    return TrainerOfNumber() if isinstance(under_check.says, Number) else Trainer(load_model("toy"))


def asked(engine: EngineUnderTest) -> Any:
    return probes(min(engine.vocabulary, 480), MAX_LENGTH)


def keep_its_cache(strategy: Any, planted: pytest.MonkeyPatch) -> None:
    """Have the engine's cached prefixes survive new weights."""
    inner = strategy._engine
    name = next(name for name in _DROPS_CACHE if hasattr(inner, name))

    async def later(*arguments: Any, **options: Any) -> bool:
        return True

    planted.setattr(inner, name, (lambda: None) if name == "drop_prefixes" else later)


def test_faults_of_weights_are_found_and_their_tensors_named(under_check: EngineUnderTest, trainer: Any) -> None:
    if isinstance(trainer, TrainerOfNumber):
        pytest.skip("its model is one number")
    tells = hasattr(under_check.engine, "fingerprints")
    for fault, message in in_turn(under_check.run, trainer, Engines(under_check.engine), asked(under_check)):
        assert bool(message) == bool(fault), message
        words = FAULTS[fault][1] if fault and tells else ()
        assert all(word.lower() in message.lower() for word in words), message


def test_old_weights_under_a_new_version_are_found(under_check: EngineUnderTest, trainer: Any) -> None:
    engines = Engines(under_check.engine)
    before = trainer.weights()
    check = check_of(trainer, engines, asked(under_check))
    under_check.run(publish(check, engines, 301, before))
    assert found(check) == ""
    trainer.step(1)
    under_check.run(publish(check, engines, 302, before))
    assert "engine 0 does not answer as the trainer does: log-probs" in found(check)


def test_a_stale_adapter_is_found(under_check: EngineUnderTest, trainer: Any) -> None:
    if isinstance(trainer, TrainerOfNumber):
        pytest.skip("its model has no layers")
    adapted, engines = (
        Trainer(add_adapters(load_model("toy"), 4, None, ["k_proj"], seed=1)),
        Engines(under_check.engine),
    )
    adapted.step(1, size=0.02)
    before = adapted.weights()
    check = check_of(adapted, engines, asked(under_check))
    under_check.run(publish(check, engines, 201, before))
    assert found(check) == ""
    adapted.step(2, size=0.02)
    under_check.run(publish(check, engines, 202, before))
    assert found(check)
    if hasattr(under_check.engine, "fingerprints"):
        assert "2 differ, layer by layer: model.layers.0.self_attn.k_proj.weight" in found(check)


@pytest.mark.parametrize("tells", [True, False], ids=["it says so", "its log-probs alone"])
def test_a_prefix_cache_that_outlives_its_weights_is_found(
    under_check: EngineUnderTest, trainer: Any, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    if not under_check.keeps_prefixes:
        pytest.skip("keeps no prefix that could outlive its weights")
    if not tells and isinstance(trainer, TrainerOfNumber):
        pytest.skip("its cache holds nothing")
    engines = Engines(under_check.engine)
    check = check_of(trainer, engines, asked(under_check))
    honest: Callable[[GenerationRequest], Any] = under_check.engine.generate

    async def generate(request: GenerationRequest) -> Completion:
        completion: Completion = await honest(request)
        return completion if tells else replace(completion, cached_tokens=0)

    trainer.step(1, size=10 * STEP)  # with the smallest step the difference is about as large as rounding may be
    with monkeypatch.context() as planted:
        keep_its_cache(under_check.engine, planted)
        planted.setattr(under_check.engine, "generate", generate)
        measured = under_check.run(publish(check, engines, 401, trainer.weights()))
    assert bool(re.search(r"it kept its prefix cache, and answered from \d+ tokens", found(check))) == tells
    if not tells:
        assert measured[DIFFERENCE] > FULL_PRECISION
        assert "differ by up to" in found(check)
    if hasattr(under_check.engine, "fingerprints"):
        assert "All 24 tensors that can be compared are the same in both" in found(check)


@pytest.mark.exhaustive
def test_no_false_alarm_in_many_updates(under_check: EngineUnderTest, trainer: Any) -> None:
    if isinstance(under_check.engine, HfInferStrategy):
        pytest.skip("tests/pipelines/test_weight_check.py does it with requests under way")
    updates = UPDATES_OF_SGLANG if isinstance(under_check, RealSglang) else UPDATES
    engines = Engines(under_check.engine)
    check = check_of(trainer, engines, asked(under_check))

    async def play() -> list[float]:
        seen = []
        for version in range(501, 501 + updates):
            trainer.step(version, size=1e-5)
            seen.append((await publish(check, engines, version, trainer.weights()))[DIFFERENCE])
        return seen

    seen = under_check.run(play(), timeout=400)
    assert found(check) == ""
    assert max(seen) < FULL_PRECISION / 10
