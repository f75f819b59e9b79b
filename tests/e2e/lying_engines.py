"""Engine workers (``actor_infer.worker_cls``) that do not quite do what they are asked to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roll.strategies.base import WeightUpdate
from roll.workers.engine import EngineWorker

MISSING = "model.layers.1.self_attn.k_proj.weight"


class MissesOneTensor(EngineWorker):
    """Keeps the old values of one tensor, from step 2 on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        engine: Any = self._engine
        honest, kept = engine.update_weights, {}

        async def update_weights(update: WeightUpdate) -> None:
            tensors = {name: tensor.detach().clone() for name, tensor in update.named_tensors}
            kept.setdefault(MISSING, tensors[MISSING])
            if update.version >= 2:
                tensors[MISSING] = kept[MISSING]
            await honest(replace(update, named_tensors=tensors.items()))

        engine.update_weights = update_weights


class KeepsItsCache(EngineWorker):
    """Does not drop cached prefixes, from step 2 on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        inner: Any = getattr(self._engine, "_engine")  # noqa: B009
        honest = inner.drop_prefixes
        inner.drop_prefixes = lambda: honest() if inner.version < 1 else None


class KeepsThePretrained(EngineWorker):
    """Takes every version, and the weights of none."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        engine: Any = self._engine
        honest = engine.update_weights
        own = {name: tensor.clone() for name, tensor in engine._engine.runner._parameters.items()}

        async def update_weights(update: WeightUpdate) -> None:
            await honest(replace(update, named_tensors=own.items()))

        engine.update_weights = update_weights
