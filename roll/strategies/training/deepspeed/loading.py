"""Loading a model whose weights are shared out while they are read."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from roll.strategies.base import Prediction
from roll.strategies.training.deepspeed.engine import sharing_out
from roll.strategies.training.deepspeed.options import DeepSpeedOptions


def load_shared_out(
    load: Callable[[], PreTrainedModel], zero: DeepSpeedOptions, *, mixed_precision: bool, predicts: Prediction
) -> PreTrainedModel:
    """Load a model; a language model under ZeRO stage 3 without any rank ever holding all of it.

    Critics are loaded whole, and shared out afterwards: their new value head is set to zero by code that must see it.

    Args:
        load: Loads the model with ``from_pretrained``; called on every rank.
        zero: What is shared out.
        mixed_precision: Whether the model will compute in bf16.
        predicts: What the model is for.
    """
    if zero.stage != 3 or predicts == "values":
        return load()
    with sharing_out(zero.config(mixed_precision=mixed_precision)):
        return load()
