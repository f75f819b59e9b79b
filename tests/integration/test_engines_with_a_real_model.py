"""A real instruct model answers a conversation of several turns as Hugging Face says, with every engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import EngineUnderTest, HuggingFace
from sglang_support import needs_sglang
from vllm_support import needs_vllm

from roll.algorithms.distillation import with_others
from roll.generation import SamplingParams, ScoringRequest
from roll.models.loading import load_model, load_tokenizer
from roll.rendering import ChatRenderer
from roll.strategies.base import ScoresTokens

sys.path.append(str(Path(__file__).resolve().parents[1] / "models"))
from smollm2_support import needs_smollm2  # noqa: E402

pytestmark = [needs_smollm2, pytest.mark.exhaustive]

MOST_TOKENS = 10
SIZE: dict[str, Any] = {"max_slots": 8, "max_length": 512}
MOST_NAMED = 32


def hf_infer(folder: str) -> Any:
    from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

    return HfInferStrategy(load_model(folder), **SIZE)


def vllm(folder: str) -> Any:
    from roll.strategies.generation.vllm.strategy import VllmStrategy

    return VllmStrategy(folder, **SIZE, dtype="fp32", most_named=MOST_NAMED)


def sglang(folder: str) -> Any:
    from roll.strategies.generation.sglang.strategy import SglangStrategy

    return SglangStrategy(folder, **SIZE, dtype="fp32", most_named=MOST_NAMED)


ENGINES = [
    hf_infer,
    pytest.param(vllm, marks=needs_vllm),
    pytest.param(sglang, marks=[pytest.mark.sglang, needs_sglang]),
]


@pytest.mark.parametrize("start", ENGINES)
def test_a_conversation_is_continued_as_hugging_face_says(start: Callable[[str], Any]) -> None:
    from roll.models.smollm2 import smollm2_folder

    folder = str(smollm2_folder())
    renderer = ChatRenderer(load_tokenizer(folder))
    engine = EngineUnderTest(start(folder), HuggingFace(load_model(folder)))
    greedy = SamplingParams(max_new_tokens=MOST_TOKENS, temperature=0.0, stop_token_ids=renderer.stop_token_ids)
    try:
        prompt = renderer.render_ids([{"role": "user", "content": "What is the capital of France?"}])
        for question in ("And of Italy?", "What is 17 + 25?", None):
            got = engine.run(engine.engine.generate(engine.request(prompt, **_options(greedy))), timeout=300)
            wanted = engine.says.greedy(prompt, MOST_TOKENS)
            stop = next((n for n, token in enumerate(wanted, 1) if token in renderer.stop_token_ids), MOST_TOKENS)
            assert got.token_ids == wanted[:stop]
            assert engine.difference(prompt, got, greedy) < 1e-3
            if question is not None:
                bridge = renderer.next_ids(got.token_ids, [{"role": "user", "content": question}])
                assert bridge is not None
                prompt = [*prompt, *got.token_ids, *bridge]
        if isinstance(engine.engine, ScoresTokens):
            scores = engine.run(engine.engine.score(ScoringRequest("whole", prompt, 5, MOST_NAMED)), timeout=300)
            true = engine.says.distributions(prompt)[4:]
            own = true.gather(1, torch.tensor(prompt[5:]).unsqueeze(1)).squeeze(1)
            assert (torch.tensor(scores.log_probs) - own).abs().max() < 1e-3
            named = torch.tensor(scores.named_log_probs)
            assert (named - true.gather(1, torch.tensor(scores.named_ids))).abs().max() < 1e-3
            # The mass of all tokens that are not named, and whether they are those that are not.
            left = with_others(named, engine.engine.vocabulary - MOST_NAMED)[:, -1].exp()
            assert (left - (1 - true.topk(MOST_NAMED).values.exp().sum(-1))).abs().max() < 1e-4
    finally:
        engine.run(engine.engine.close())


def _options(sampling: SamplingParams) -> dict[str, Any]:
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": sampling.stop_token_ids,
    }
