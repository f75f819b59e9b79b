"""Loading a model on rank 0 only."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from roll.strategies.training.ranks import Ranks


def load_on_first_rank(
    load: Callable[[], PreTrainedModel], prepare: Callable[[PreTrainedModel], object] | None = None
) -> PreTrainedModel:
    """Load a model on rank 0; the other ranks get the same model without memory behind its weights.

    What it returns goes to ``FsdpTrainStrategy`` or ``Scorer`` with ``meta_init``, which hands every rank its share.
    Every rank must call it.

    Args:
        load: Loads the model, best into CPU memory; called on rank 0 only. Its class must be one that the other ranks
            can import.
        prepare: Changes the loaded model in place, on every rank (:func:`roll.models.lora.add_adapters`).

    Raises:
        RuntimeError: On the ranks above 0, if loading failed on rank 0 (where the error itself is raised).
    """
    ranks = Ranks()
    model: PreTrainedModel | None = None
    if ranks.size == 1:
        model = load()
        _prepare(model, prepare)
        return model
    try:
        if ranks.rank == 0:
            loaded = load()
            _prepare(loaded, prepare)
            model = loaded
    finally:
        # Also after an error, so that the others do not wait for what never comes.
        described = None if model is None else (type(model), model.config, model.dtype, model.training)
        message = [described]
        dist.broadcast_object_list(message, src=0, device=ranks.device)
    if model is not None:
        return model
    if message[0] is None:
        raise RuntimeError("Rank 0 could not load the model; its own error says why.")
    kind, config, dtype, training = message[0]
    with torch.device("meta"):
        empty: PreTrainedModel = kind._from_config(config, dtype=dtype)
        _prepare(empty, prepare)
    return empty.train(training)


def _prepare(model: PreTrainedModel, prepare: Callable[[PreTrainedModel], object] | None) -> None:
    if prepare is not None:
        prepare(model)
