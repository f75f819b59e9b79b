"""Loading a policy and its tokenizer: a packaged toy, a local folder, or a Hugging Face name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from roll.models.toy import TOYS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ModelNotFoundError(ValueError):
    """The configured ``pretrain`` is neither a packaged toy, nor a model folder, nor a name that can be fetched."""


def resolve_pretrain(pretrain: str) -> str:
    """Return the path or hub name that ``transformers`` loads; ``toy`` and ``toy_math`` are packaged models."""
    if pretrain in TOYS:
        return str(TOYS[pretrain])
    return str(Path(pretrain).expanduser()) if pretrain.startswith("~") else pretrain


def _not_found(pretrain: str, cause: Exception) -> ModelNotFoundError:
    looks_local = Path(pretrain).exists() or pretrain.startswith((".", "/", "~"))
    where = "that folder has no loadable model" if looks_local else "it is not a folder here and could not be fetched"
    first_line = (str(cause).splitlines() or [type(cause).__name__])[0]
    return ModelNotFoundError(
        f"pretrain={pretrain!r}: {where} ({first_line}). "
        "Use pretrain=toy or pretrain=toy_math for a packaged model, the path of a folder saved with save_pretrained, "
        "or a Hugging Face name on a machine that can reach the hub."
    )


def load_tokenizer(pretrain: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``pretrain``.

    Raises:
        ModelNotFoundError: If nothing loadable is there.
    """
    try:
        return AutoTokenizer.from_pretrained(resolve_pretrain(pretrain))
    except (OSError, ValueError) as error:
        raise _not_found(pretrain, error) from error


def load_model(
    pretrain: str, *, dtype: str | None = "fp32", device: str = "cpu", attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the causal language model of ``pretrain`` in evaluation mode.

    Args:
        pretrain: ``"toy"``, ``"toy_math"``, a folder, or a Hugging Face name.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing loadable is there.
    """
    options: dict[str, Any] = {"dtype": "auto" if dtype is None else DTYPES[dtype]}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    try:
        model = AutoModelForCausalLM.from_pretrained(resolve_pretrain(pretrain), **options)
    except (OSError, ValueError) as error:
        raise _not_found(pretrain, error) from error
    return model.to(device=torch.device(device)).eval()  # type: ignore[call-arg]
