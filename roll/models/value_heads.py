"""The backbone of a language model with one number in place of the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import DTYPES
from roll.strategies.training.values import HEADS, value_head


def load_with_value_head(
    kind: Any, pretrain: str, noun: str, *, dtype: str | None, device: str, attn_implementation: str | None
) -> PreTrainedModel:
    """Load a classifier with one label, without dropout, in evaluation mode; a head that is not there starts at zero.

    Args:
        kind: The auto class of transformers.
        pretrain: A built-in model (:data:`roll.models.finding.BUILT_IN`), a folder, or a Hugging Face name.
        noun: What it is to be, for errors.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing is there that it can be made of.
    """
    options: dict[str, Any] = {"dtype": "auto" if dtype is None else DTYPES[dtype]}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    path = resolve_pretrain(pretrain)
    # The library draws a new head before it is set to zero here; that must not move the generator of the run.
    with torch.random.fork_rng(devices=[]):
        try:
            config = AutoConfig.from_pretrained(path)
            config.num_labels, config.classifier_dropout = 1, 0.0
            model, report = kind.from_pretrained(
                path, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except (OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise _unusable(pretrain, noun, reason) from error
    new = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    lost = sorted(name for name in new if name.split(".")[0] not in HEADS)
    if lost:
        raise _unusable(pretrain, noun, f"it lacks {len(lost)} weights of the model, {lost[0]} among them")
    _zero(value_head(model), {name.split(".")[-1] for name in new})
    loaded: PreTrainedModel = model.to(device=torch.device(device)).eval()
    return loaded


@torch.no_grad()
def _zero(head: nn.Linear, names: set[str]) -> None:
    for name, parameter in head.named_parameters():
        if name in names:
            parameter.zero_()


def _unusable(pretrain: str, noun: str, reason: str) -> ModelNotFoundError:
    classification = "token" if noun == "critic" else "sequence"
    return ModelNotFoundError(
        f"{pretrain!r}: no {noun} can be loaded from it ({reason}).",
        f"use a model whose architecture has a {classification} classification model in transformers, with all of its "
        "weights.",
    )
