"""The sizes of a model: how many numbers it holds, and where. Pure arithmetic on its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.common.number_format import format_in
from roll.planning.families import known_config

_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "glm", "seed_oss", "gpt_oss")
"""Families whose projections to queries, keys and values have a bias."""
_NORMED_HEADS = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe")
"""Families that normalise queries and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of attention and feed-forward layers.

    Attributes:
        model_type: Its family.
        hidden: Width of the residual stream.
        layers: Layers.
        queries: Width of all queries of a token.
        keys: Width of all keys of a token; values have it too.
        key_heads: Key-value heads.
        heads: Query heads.
        intermediate: Width of a dense feed-forward layer.
        vocabulary: Rows of the embedding.
        tied: Whether the head is the embedding.
        attention: Numbers of the attention of a layer, norms inside included.
        cached: Numbers that a layer caches of a token.
        normed_heads: Whether queries and keys are normalised.
        experts: Experts of a sparse layer; 0 for a dense model.
        chosen: Experts that compute a token.
        expert_intermediate: Width of an expert.
        shared_intermediate: Width of the expert that computes every token.
        sparse_layers: Layers with experts.
        vision: Numbers of what sees pictures.
        longest: Most positions, ``None`` where the configuration does not say.
        number_format: In which it computes where its role does not say; models known by name are published in bf16.
    """

    model_type: str
    hidden: int
    layers: int
    queries: int
    keys: int
    key_heads: int
    heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    attention: int
    cached: int
    normed_heads: bool = False
    experts: int = 0
    chosen: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    sparse_layers: int = 0
    vision: int = 0
    longest: int | None = None
    number_format: str = "bf16"

    @property
    def embedding(self) -> int:
        """Numbers of the embedding."""
        return self.vocabulary * self.hidden

    @property
    def head(self) -> int:
        """Numbers of a head of its own."""
        return 0 if self.tied else self.embedding

    @property
    def dense_layer(self) -> int:
        """Numbers of a layer without experts."""
        return self.attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def layer_experts(self) -> int:
        """Numbers of all experts of a sparse layer, without the shared one."""
        return 3 * self.experts * self.hidden * self.expert_intermediate

    @property
    def sparse_layer(self) -> int:
        """Numbers of a layer with experts."""
        shared = 3 * self.hidden * self.shared_intermediate
        # Qwen2-MoE weighs its shared expert by a gate.
        gates = self.hidden * (self.experts + (self.model_type == "qwen2_moe"))
        return self.attention + self.layer_experts + shared + gates + 2 * self.hidden

    @property
    def all_layers(self) -> int:
        """Numbers of all layers."""
        return self.sparse_layers * self.sparse_layer + (self.layers - self.sparse_layers) * self.dense_layer

    @property
    def largest_layer(self) -> int:
        """Numbers of the largest layer."""
        return max(self.sparse_layer if self.sparse_layers else 0, self.dense_layer)

    @property
    def numbers(self) -> int:
        """Numbers of the whole model."""
        return self.embedding + self.head + self.all_layers + self.hidden + self.vision

    @property
    def active(self) -> int:
        """Numbers that compute a token: without the embedding, and with the chosen experts only."""
        idle = self.sparse_layers * 3 * (self.experts - self.chosen) * self.hidden * self.expert_intermediate
        return self.embedding + self.all_layers - idle

    def adapters(self, rank: int) -> int:
        """Return the numbers of LoRA adapters at every linear layer but the head; experts in one tensor get none."""
        own = self.queries + self.hidden + 2 * (self.keys + self.hidden) + self.queries + self.hidden
        dense = (self.layers - self.sparse_layers) * 3 * (self.hidden + self.intermediate)
        shared = self.sparse_layers * 3 * (self.hidden + self.shared_intermediate) if self.shared_intermediate else 0
        return rank * (self.layers * own + dense + shared)


def shape_from(config: Mapping[str, Any]) -> ModelShape:
    """Return the sizes that a ``config.json`` describes; of a model that sees pictures, with its text part inside.

    Raises:
        ValueError: It lacks a size.
    """
    text = {**config, **(config.get("text_config") or {})}
    try:
        hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
        heads, vocabulary = int(text["num_attention_heads"]), int(text["vocab_size"])
        intermediate = int(text.get("intermediate_size") or text["moe_intermediate_size"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it does not give {error}, so the sizes of the model are not known.") from error
    family = str(config.get("model_type", ""))
    key_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    experts = int(text.get("num_experts") or text.get("n_routed_experts") or text.get("num_local_experts") or 0)
    expert = int(text.get("moe_intermediate_size") or intermediate) if experts else 0
    if text.get("kv_lora_rank"):
        queries, keys, attention, cached = _latent(text, hidden, heads)
    else:
        queries, keys = heads * head, key_heads * head
        bias = queries + 2 * keys if family in _BIASED or text.get("attention_bias") else 0
        attention = hidden * (2 * queries + 2 * keys) + bias + (2 * head if family in _NORMED_HEADS else 0)
        cached = 2 * keys
    return ModelShape(
        model_type=family,
        hidden=hidden,
        layers=layers,
        queries=queries,
        keys=keys,
        key_heads=key_heads,
        heads=heads,
        intermediate=intermediate,
        vocabulary=vocabulary,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        attention=attention,
        cached=cached,
        normed_heads=family in _NORMED_HEADS,
        experts=experts,
        chosen=int(text.get("num_experts_per_tok") or 0),
        expert_intermediate=expert,
        shared_intermediate=int(
            text.get("shared_expert_intermediate_size") or expert * int(text.get("n_shared_experts") or 0)
        ),
        sparse_layers=_sparse_layers(text, layers) if experts else 0,
        vision=int(config.get("vision_numbers") or 0),
        longest=text.get("max_position_embeddings"),
        number_format=format_in(config) or "bf16",
    )


def _latent(text: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int, int, int]:
    """Return widths of queries and keys, numbers, and cached numbers of attention with a latent (DeepSeek-V2, V3)."""
    latent, rotary = int(text["kv_lora_rank"]), int(text["qk_rope_head_dim"])
    plain, value, low = int(text["qk_nope_head_dim"]), int(text["v_head_dim"]), text.get("q_lora_rank")
    queries = heads * (plain + rotary)
    up = hidden * queries if not low else low * (hidden + queries + 1)
    down = hidden * (latent + rotary) + latent
    attention = up + down + latent * heads * (plain + value) + heads * value * hidden
    return queries, queries, attention, latent + rotary


def _sparse_layers(text: Mapping[str, Any], layers: int) -> int:
    dense = set(text.get("mlp_only_layers") or ())
    step, first = int(text.get("decoder_sparse_step") or 1), int(text.get("first_k_dense_replace") or 0)
    return sum(layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def shape_of(name: str, folder: str | None = None) -> ModelShape:
    """Return the sizes of a model, downloading nothing.

    Args:
        name: A folder with a ``config.json``, the file itself, or the name of a well-known model.
        folder: Where the model is, if it is known already.

    Raises:
        ValueError: Neither a file nor the name says what the sizes are.
    """
    for place in (folder, name):
        path = None if place is None else Path(place).expanduser()
        if path is not None and path.is_dir():
            path = path / "config.json"
        if path is not None and path.is_file():
            return shape_from(json.loads(path.read_text(encoding="utf-8")))
    known = known_config(name)
    if known is None:
        raise ValueError(f"{name!r} is no folder with a config.json, and no model whose sizes are known by name.")
    return shape_from(known)
