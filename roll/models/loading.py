"""Loading a policy and its tokenizer: a built-in model, a local folder, or a Hugging Face name."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from roll.models.finding import not_loadable, resolve_pretrain

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_tokenizer(pretrain: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``pretrain``.

    Raises:
        ModelNotFoundError: If nothing loadable is there.
    """
    path = resolve_pretrain(pretrain)
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise not_loadable(pretrain, error) from error


def load_model(
    pretrain: str, *, dtype: str | None = "fp32", device: str = "cpu", attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the causal language model of ``pretrain`` in evaluation mode, with its vision part where it has one.

    Args:
        pretrain: A built-in model (:data:`roll.models.finding.BUILT_IN`), a folder, or a Hugging Face name.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing loadable is there.
    """
    options: dict[str, Any] = {"dtype": "auto" if dtype is None else DTYPES[dtype]}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    path = resolve_pretrain(pretrain)
    try:
        model = _auto_class(path).from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise not_loadable(pretrain, error) from error
    return model.to(device=torch.device(device)).eval()


def _auto_class(path: str) -> Any:
    """Return what loads a model whole: of one with a vision part, the class for language alone may leave that out."""
    sees = "vision_config" in AutoConfig.from_pretrained(path).sub_configs
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM
