"""How models are spoken to: transformers gives arguments and methods new names, and warns of the older ones."""

from __future__ import annotations

import inspect

from torch import nn
from transformers import PreTrainedModel


def cache_argument(model: nn.Module) -> str:
    """Return the argument of ``forward`` that a key-value cache is handed over in.

    ``cache`` in newer releases, where ``past_key_values`` is its deprecated name.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def recompute_activations(model: PreTrainedModel) -> None:
    """Have layers computed again in the backward pass (gradient checkpointing), by PyTorch's way without reentry."""
    how = {"use_reentrant": False}
    newer = getattr(model, "activation_checkpointing_enable", None)
    if newer is not None:
        newer(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def keep_activations(model: object) -> None:
    """End what :func:`recompute_activations` began; nothing for a module that is no model of transformers."""
    for name in ("activation_checkpointing_disable", "gradient_checkpointing_disable"):
        if hasattr(model, name):
            getattr(model, name)()
            return
