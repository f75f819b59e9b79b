"""A random model of the same family as another, small enough for a laptop, with its tokenizer where that is at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase, Qwen2Config

from roll.models.finding import BUILT_IN
from roll.models.loading import load_tokenizer
from roll.planning.families import known_config

_TEXT_FAMILIES: Final = {"qwen2_5_vl": "qwen2", "qwen2_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
_SMALL: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}
_SMALL_EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@dataclass(frozen=True, slots=True)
class StandIn:
    """A random model in a folder.

    Attributes:
        folder: Where it is.
        family: Its ``model_type``.
        note: What it stands for, as a sentence.
        own_tokenizer: Whether its tokenizer is that of the model for which it stands.
    """

    folder: Path
    family: str
    note: str
    own_tokenizer: bool


def make_stand_in(name: str, folder: Path, seed: int) -> StandIn:
    """Write a small random model of the family of another, and return where it is.

    Args:
        name: What the configuration calls the model.
        folder: Where to write it.
        seed: Of its weights.
    """
    tokenizer, own = _tokenizer(name)
    family = _family(name)
    config = _small(family or "qwen2", len(tokenizer), tokenizer.eos_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    of = (
        f"the family {config.model_type}" if family == config.model_type else f"{config.model_type} (its own: {family})"
    )
    whose = "its own tokenizer" if own else "the tokenizer of toy, since its own is not on this machine"
    return StandIn(folder, config.model_type, f"{name} is a random model of {of} with {whose}.", own)


def _tokenizer(name: str) -> tuple[PreTrainedTokenizerBase, bool]:
    at_hand = name in BUILT_IN or (Path(name).expanduser() / "tokenizer_config.json").is_file()
    if not at_hand and "/" in name and not name.startswith(("/", ".")) and name.count("/") == 1:
        at_hand = isinstance(try_to_load_from_cache(name, "tokenizer_config.json"), str)
    return (load_tokenizer(name), True) if at_hand else (load_tokenizer("toy"), False)


def _family(name: str) -> str | None:
    path = Path(name).expanduser() / "config.json"
    if name in BUILT_IN:
        return "qwen2"
    if path.is_file():
        return str(AutoConfig.from_pretrained(path.parent).model_type)
    known = known_config(name)
    return None if known is None else str(known["model_type"])


def _small(family: str, vocabulary: int, end: Any) -> Any:
    sizes = {**_SMALL, "vocab_size": vocabulary, "eos_token_id": end, "tie_word_embeddings": True}
    kind = _TEXT_FAMILIES.get(family, family)
    try:
        config = AutoConfig.for_model(kind)
    except ValueError:
        return Qwen2Config(**{key: value for key, value in sizes.items() if key != "head_dim"})
    if hasattr(config, "kv_lora_rank"):
        # Latent attention has widths of its own, all of which would have to shrink together.
        return Qwen2Config(**{key: value for key, value in sizes.items() if key != "head_dim"})
    experts = {key: value for key, value in _SMALL_EXPERTS.items() if hasattr(config, key)}
    return AutoConfig.for_model(kind, **{**sizes, **experts})
