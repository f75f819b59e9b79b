"""Weights are cut into parts and put together again exactly; tokens keep their places when rows are laid out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

pytest.importorskip("megatron.core", reason="needs Megatron-Core: pip install 'roll-rl[megatron]'")

from roll.strategies.training.megatron.architecture import expert_layers, inverse_frequencies, transformer_config
from roll.strategies.training.megatron.hf_names import (
    Attention,
    Cut,
    Gated,
    NameRules,
    Vocabulary,
    Whole,
    whole_model_name,
)
from roll.strategies.training.megatron.hf_weights import HfWeights, HfWriter
from roll.strategies.training.megatron.inputs import Division, model_inputs
from roll.strategies.training.megatron.options import MegatronOptions

pytestmark = pytest.mark.long

SIZES = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_attention_heads=4, num_key_value_heads=2)


def numbered(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(*shape) + 1


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("layout", "whole"),
    [
        (Whole(), [numbered(5)]),
        (Cut(1), [numbered(3, 8)]),
        (Vocabulary(11, 16), [numbered(11, 4)]),
        (Gated(), [numbered(6, 4), -numbered(6, 4)]),
        (Attention(2, 6, 3), [numbered(12, 4), -numbered(6, 4), 0.5 * numbered(6, 4)]),
        (Attention(2, 6, 3), [numbered(12), -numbered(6), 0.5 * numbered(6)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parts_make_the_whole_again(layout, whole: list[Tensor], parts: int) -> None:
    cut = [layout.split(whole, part, parts) for part in range(parts)]
    joined = layout.join(cut)
    assert len(joined) == len(whole)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(joined, whole, strict=True))


def test_a_part_of_the_attention_has_whole_groups() -> None:
    query, key, value = numbered(8, 1), 10 * numbered(4, 1), 100 * numbered(4, 1)
    second = Attention(2, 4, 2).split([query, key, value], 1, 2)
    assert second.flatten().tolist() == [5, 6, 7, 8, 30, 40, 300, 400]


def test_names_of_both_kinds_of_layers_lead_to_the_same_weights() -> None:
    rules = NameRules(Qwen3Config(**SIZES, num_hidden_layers=2), 1)
    plain, fused = "decoder.layers.1.input_layernorm.weight", "decoder.layers.1.self_attention.linear_qkv"
    assert rules.source(plain).names == rules.source(f"{fused}.layer_norm_weight").names
    assert rules.source(plain).names == ("model.layers.1.input_layernorm.weight",)
    assert rules.source(f"{fused}.bias").names == tuple(f"model.layers.1.self_attn.{x}_proj.bias" for x in "qkv")
    apart = rules.source("decoder.layers.0.mlp.experts.local_experts.3.linear_fc2.weight")
    assert apart.names == ("model.layers.0.mlp.experts.3.down_proj.weight",) and apart.expert == 3
    assert rules.source("decoder.layers.0.mlp.experts.linear_fc2.weight3").names == apart.names
    with pytest.raises(KeyError, match="no Hugging Face weight is known for 'decoder.layers.0.new.weight'"):
        rules.source("decoder.layers.0.new.weight")


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("embedding.word_embeddings.weight", "embedding.word_embeddings.weight"),
        ("decoder.layers.1.mlp.router.weight", "decoder.layers.5.mlp.router.weight"),
        (
            "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight",
            "decoder.layers.4.mlp.experts.local_experts.9.linear_fc1.weight",
        ),
        ("decoder.layers.0.mlp.experts.linear_fc1.weight1", "decoder.layers.4.mlp.experts.linear_fc1.weight9"),
    ],
)
def test_layers_and_experts_are_counted_over_all_ranks(name: str, counted: str) -> None:
    assert whole_model_name(name, 4, 8) == counted


def rows() -> TensorDict:
    lengths = torch.tensor([7, 3, 5])
    inside = torch.arange(7) < lengths.unsqueeze(1)
    ids = (torch.arange(21).view(3, 7) + 100) * inside
    mask = inside & (torch.arange(7) % 2 == 0)
    return TensorDict({"input_ids": ids, "response_mask": mask, "lengths": lengths}, batch_size=[3])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("larger", [False, True])
def test_every_asked_token_has_one_rank_that_computes_what_comes_before(packed: bool, size: int, larger: bool) -> None:
    batch = rows()
    ids, mask = batch["input_ids"].flatten(), batch["response_mask"].clone()
    mask[:, 0] = False
    shape = ((1, 48) if packed else (4, 24)) if larger else None
    cells, tokens = [], 0
    for rank in range(size):
        laid = model_inputs(batch, Division.of(size, rank, 2, True), packed=packed, shape=shape)
        tokens += laid.input_ids.numel()
        assert laid.input_ids.shape[1] % 2 == 0
        own = laid.input_ids.flatten()[laid.sources]
        assert torch.equal(own, ids[laid.cells - 1]), "the token before"
        assert torch.equal(laid.position_ids.flatten()[laid.sources], laid.cells % 7 - 1)
        assert torch.equal(laid.targets, ids[laid.cells])
        cells += laid.cells.tolist()
        if packed:
            assert int(laid.packing.cu_seqlens_q[-1]) == laid.input_ids.numel() * size
    assert sorted(cells) == mask.flatten().nonzero().squeeze(1).tolist()
    assert not larger or tokens == shape[0] * shape[1]


def test_files_of_bounded_size_are_what_transformers_reads(tmp_path: Path) -> None:
    sizes = dict(**SIZES, num_hidden_layers=1, head_dim=2, num_experts=3, num_experts_per_tok=2)
    config = Qwen3MoeConfig(**sizes, moe_intermediate_size=4)
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs")
    apart = HfWeights(tmp_path / "theirs")
    fused = HfWeights(model)
    writer = HfWriter(tmp_path / "ours", shard_bytes=1000)
    names = [*apart._files]
    assert any(".experts.2.gate_proj." in name for name in names)
    for name in names:
        assert name in fused and torch.equal(fused[name], apart[name]), name
    writer.write((name, apart[name]) for name in names)
    writer.close()
    config.save_pretrained(tmp_path / "ours")
    files = list((tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 2 and not list((tmp_path / "ours").glob("*.partial"))
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for (name, ours), (_, theirs) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    with pytest.raises(KeyError, match="has no weight 'nothing'"):
        apart["nothing"]
    with pytest.raises(FileNotFoundError, match="safetensors"):
        config.save_pretrained(tmp_path / "empty")
        HfWeights(tmp_path / "empty")["embed"]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 123456.0},
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_frequencies_are_those_of_the_hugging_face_model(rope: dict) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**{**SIZES, "hidden_size": 64}, rope_parameters=rope)
    torch.testing.assert_close(inverse_frequencies(config), LlamaRotaryEmbedding(config).inv_freq, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (MistralConfig(**SIZES), {}, "cannot convert models of type 'mistral'"),
        (Qwen3Config(**SIZES, attention_bias=True), {}, "attention_bias=True"),
        (Qwen3Config(**SIZES, hidden_act="gelu"), {}, "hidden_act='gelu'"),
        (LlamaConfig(**SIZES, mlp_bias=True), {}, "mlp_bias=True"),
        (Qwen3Config(**SIZES), {"tensor_model_parallel_size": 4}, "does not divide the 2 key-value heads"),
        (Qwen3Config(**SIZES), {"expert_model_parallel_size": 2}, "does not divide the 0 experts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models_that_cannot_be_converted_are_refused(config: PretrainedConfig, options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        transformer_config(config, MegatronOptions(**options), torch.device("cpu"))


def test_a_rotary_scaling_that_depends_on_the_length_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    with pytest.raises(ValueError, match="rope_type='dynamic'"):
        inverse_frequencies(LlamaConfig(**SIZES, rope_parameters=rope))


def test_dense_layers_among_experts_are_found() -> None:
    config = Qwen3MoeConfig(**SIZES, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    assert expert_layers(config) == [0, 1, 0, 0, 0, 1]
