"""The number format of a model is the one in which `transformers` loads it where it is told to decide by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from roll.common.number_format import format_in
from roll.models.errors import ModelNotFoundError
from roll.models.number_format import own_format

STORED = {torch.float32: "fp32", torch.bfloat16: "bf16"}
SIZES = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}


def saved(folder: Path, dtype: torch.dtype) -> Path:
    Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS)).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("named", ["dtype", "torch_dtype", None])
def test_it_is_that_of_transformers_left_to_itself(tmp_path: Path, dtype: torch.dtype, named: str | None) -> None:
    config = saved(tmp_path, dtype) / "config.json"
    described = json.loads(config.read_text())
    said = described.pop("dtype")
    config.write_text(json.dumps(described if named is None else {**described, named: said}))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype
    assert own_format(str(tmp_path)) == STORED[loaded] == STORED[dtype]


def test_a_model_in_fp16_computes_in_bf16_since_nothing_trains_in_fp16(tmp_path: Path) -> None:
    assert own_format(str(saved(tmp_path, torch.float16))) == "bf16"


def test_built_in_models_and_those_that_see_pictures() -> None:
    assert own_format("toy") == "fp32"
    assert format_in({"model_type": "qwen2_5_vl", "text_config": {"dtype": "bfloat16"}}) == "bf16"
    assert format_in({"model_type": "qwen3"}) is None


def test_a_folder_whose_description_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match="that folder has no loadable model"):
        own_format(str(tmp_path))
