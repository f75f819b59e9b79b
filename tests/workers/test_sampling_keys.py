"""The keys of ``generating_args`` reach the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roll.config import load
from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.workers.environment import sampling_params
from roll.workers.factory import generation_strategy

PROMPT = list(range(20, 60))


def completion(section: str, **sampling: Any) -> Completion:
    """Return what the engine of a run says that has these keys in a section."""
    greedy = {"temperature": 0.0, "max_new_tokens": 30, **sampling}
    tree = {"actor_infer": {"generating_args": greedy}} if section == "training" else {"val_generating_args": greedy}
    config = load({"pretrain": "toy", **tree})
    engine = generation_strategy(config)
    generating = config.actor_infer.generating_args if section == "training" else config.val_generating
    return asyncio.run(engine.generate(GenerationRequest("a", PROMPT, sampling_params(generating))))


@pytest.mark.parametrize("section", ["training", "evaluation"])
def test_stop_strings_end_responses(section: str) -> None:
    tokenizer = load_tokenizer("toy")
    free = completion(section)
    text = tokenizer.decode(free.token_ids[4:6])
    got = completion(section, stop_strings=text)
    assert got.finish_reason == "stop"
    assert got.token_ids == free.token_ids[: len(got.token_ids)]
    assert text in tokenizer.decode(got.token_ids)
    assert text not in tokenizer.decode(got.token_ids[:-1])


def test_a_repetition_penalty_changes_what_is_said() -> None:
    assert completion("training", repetition_penalty=2.0).token_ids != completion("training").token_ids
