"""Sizes of models by arithmetic, against the models that transformers makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roll.models.toy import TOYS
from roll.planning.families import known_config
from roll.planning.shapes import shape_from, shape_of

SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32},
    **{"first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8},
    **{"qk_rope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {"tie_word_embeddings": True},
    "mistral": {},
    "gemma": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS,
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
}


def numbers(config: Any) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_of_a_model_are_those_that_transformers_makes(family: str) -> None:
    sizes = {**SMALL, "tie_word_embeddings": False, **FAMILIES[family]}
    if family == "qwen2":
        sizes.pop("head_dim")
    config = AutoConfig.for_model(family, **sizes)
    assert shape_from({**config.to_dict(), "model_type": family}).numbers == numbers(config)


# Counted from the models that their makers publish.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.494),
        ("Qwen/Qwen2.5-7B", 7.616),
        ("/data/models/Qwen2.5-Math-7B/", 7.616),
        ("Qwen/Qwen3-8B", 8.191),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.53),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.777),
        ("deepseek-ai/DeepSeek-V3", 671.0),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.55),
    ],
)
def test_a_model_is_known_by_its_name_whoever_has_a_copy(name: str, billions: float) -> None:
    assert shape_of(name).numbers / 1e9 == pytest.approx(billions, rel=1e-3)


def test_active_numbers_leave_out_the_experts_that_do_not_compute_a_token() -> None:
    assert shape_of("Qwen/Qwen3-30B-A3B").active / 1e9 == pytest.approx(3.04, rel=0.01)


def test_a_folder_says_its_sizes_itself() -> None:
    assert shape_of(str(TOYS["toy"])).hidden == AutoConfig.from_pretrained(TOYS["toy"]).hidden_size


def test_what_nobody_knows_is_an_error_and_no_guess() -> None:
    assert known_config("somebody/own-model") is None
    with pytest.raises(ValueError, match="known by name"):
        shape_of("somebody/own-model")
