"""Loading a critic: the backbone of a language model with one number per token in place of the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedModel

from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import DTYPES
from roll.strategies.training.values import HEADS, value_head


def load_critic(
    pretrain: str, *, dtype: str | None = "fp32", device: str = "cpu", attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the critic of ``pretrain`` in evaluation mode: a token classifier with one label and without dropout.

    From a language model comes the backbone; its head is left out. The value head starts at zero, so before the first
    step every value is 0, whatever the seed, and that step moves the head only. What is there of a value head is kept:
    that of a saved critic, and that of a reward model with one label.

    Args:
        pretrain: A built-in model (:data:`roll.models.finding.BUILT_IN`), a folder, or a Hugging Face name.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing is there that a critic can be made of.
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
            model, report = AutoModelForTokenClassification.from_pretrained(
                path, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except (OSError, ValueError) as error:
            raise _no_critic(pretrain, (str(error).splitlines() or [type(error).__name__])[0]) from error
    new = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    lost = sorted(name for name in new if name.split(".")[0] not in HEADS)
    if lost:
        raise _no_critic(pretrain, f"it lacks {len(lost)} weights of the model, {lost[0]} among them")
    _zero(value_head(model), {name.split(".")[-1] for name in new})
    return model.to(device=torch.device(device)).eval()


@torch.no_grad()
def _zero(head: nn.Linear, names: set[str]) -> None:
    for name, parameter in head.named_parameters():
        if name in names:
            parameter.zero_()


def _no_critic(pretrain: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{pretrain!r}: no critic can be loaded from it ({reason}).",
        "use a model whose architecture has a token classification model in transformers, with all of its weights.",
    )
