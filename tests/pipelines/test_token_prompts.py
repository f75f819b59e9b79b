"""Prompts that a file holds as token ids: those of the policy, and nothing is put around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.config.rlvr import RLVRConfig
from roll.pipelines.sampling.prompt_data import load_data
from roll.workers.loading import Text, load_text

WORDS = [{"role": "user", "content": "What is 12 + 7?"}]


def written(folder: Path, prompt: Sequence[int]) -> dict[str, Any]:
    """Return the keys of a run with one row."""
    file = folder / "rows.jsonl"
    file.write_text(json.dumps({"input_ids": list(prompt), "ground_truth": "19"}), encoding="utf-8")
    rewards = {"all": {"verifiers": {"math": 1.0}}}
    return {"pretrain": "toy_math", "rewards": rewards, "actor_train": {"data_args": {"file_name": [str(file)]}}}


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text(RLVRConfig(pretrain="toy_math", rewards={"all": {}}))


def test_they_are_the_prompt_that_the_template_would_make(text: Text, tmp_path: Path) -> None:
    ids = text.renderer.initial_ids(WORDS)
    prompt = load_data(RLVRConfig(**written(tmp_path, ids)), text).train.at(0)
    assert prompt.prompt_ids == ids
    assert "What is 12 + 7?" in prompt.messages[0]["content"]
    assert (prompt.ground_truth, prompt.domain) == ("19", "all")


def test_tokens_of_another_model_are_refused(text: Text, tmp_path: Path) -> None:
    strange = len(text.tokenizer)
    with pytest.raises(
        ConfigError, match=f"rows.jsonl, line 1: token {strange} is none of the {strange} of this model"
    ):
        load_data(RLVRConfig(**written(tmp_path, [1, strange])), text)


def test_a_policy_with_tools_needs_messages(text: Text, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the prompt is token ids, and tools are described in messages"):
        load_data(RLVRConfig(**written(tmp_path, [1]), tools=["calculator"]), text)
