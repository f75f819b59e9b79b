"""An engine turns positions as Hugging Face does where a role says ``rope_scaling``."""

from __future__ import annotations

from typing import Any

import pytest
from engines import EngineUnderTest, HuggingFace, random_prompt, toy_folder
from sglang_support import needs_sglang
from vllm_support import needs_vllm

from roll.generation import SamplingParams
from roll.models.loading import load_model
from roll.models.rope import scaled_folder

pytestmark = pytest.mark.exhaustive

SIZE: dict[str, Any] = {"max_slots": 8, "max_length": 128}
SCALINGS = {
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "linear": {"type": "linear", "factor": 3.0},
}


def vllm(folder: str) -> Any:
    from roll.strategies.generation.vllm.strategy import VllmStrategy

    return VllmStrategy(folder, **SIZE, dtype="fp32")


def sglang(folder: str) -> Any:
    from roll.strategies.generation.sglang.strategy import SglangStrategy

    return SglangStrategy(folder, **SIZE, dtype="fp32")


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        # It takes half a minute to start, and what it is told of one is what it is told of the others.
        pytest.param("yarn", vllm, marks=needs_vllm),
        *(pytest.param(kind, sglang, marks=[pytest.mark.sglang, needs_sglang]) for kind in SCALINGS),
    ],
)
def test_it_says_what_hugging_face_says(
    kind: str, start: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLL_CACHE", str(tmp_path_factory.mktemp("cache")))
    folder = scaled_folder(str(toy_folder()), SCALINGS[kind], None)
    turned = HuggingFace(load_model(folder))
    prompt, greedy = random_prompt(60, seed=1), SamplingParams(max_new_tokens=8, temperature=0.0)
    plain = HuggingFace(load_model(str(toy_folder())))
    engine = EngineUnderTest(start(folder), turned)
    try:
        got = engine.run(engine.engine.generate(engine.request(prompt, max_new_tokens=8, temperature=0.0)), timeout=300)
        assert engine.difference(prompt, got, greedy) < 1e-4
        # The model as it is on the disk says something else, or nothing was tried.
        whole = [*prompt, *got.token_ids]
        assert (plain.distributions(whole) - turned.distributions(whole)).abs().max() > 1e-2
    finally:
        engine.run(engine.engine.close())
