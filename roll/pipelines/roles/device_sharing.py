"""Roles that share devices take turns: what does not work now keeps nothing on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from roll.distributed import WorkerGroup

ENGINES = "actor_infer"


class DeviceSharing:
    """Moves models between devices and main memory as the stages of a step need them.

    In the rollout the engines have their devices, in the update the trained models and the reference. New weights go
    over while the trainer's weights and the engine's are on the device, and neither caches nor optimiser states. So the
    peak is that of the larger of the two stages, not of both.

    Roles with devices of their own, and roles on processors, are left alone.

    Args:
        models: Groups of the trained models and of the reference, by role.
        engines: The engines.
        shared: Roles that share devices with the engines.
    """

    def __init__(self, models: Mapping[str, WorkerGroup], engines: WorkerGroup, shared: tuple[str, ...]) -> None:
        self._all = {**models, ENGINES: engines}
        self._models = {role: group for role, group in models.items() if role in shared}
        self._engines = engines
        self._models_are_here = True

    @property
    def needed(self) -> bool:
        """Whether any role shares devices with the engines."""
        return bool(self._models)

    async def begin_rollout(self) -> None:
        """Give the devices to the engines; called once, before the first rollout."""
        for group in self._models.values():
            await group.all("offload", True, True)
        self._models_are_here = False

    async def begin_update(self) -> None:
        """Give the devices to the models."""
        if self.needed:
            await self._engines.all("sleep")
        for group in self._models.values():
            await group.all("reload", True, True)
        self._models_are_here = True

    async def begin_weight_sync(self) -> None:
        """Leave weights alone on the devices, those of both sides."""
        if self.needed:
            for role, group in self._models.items():
                await group.all("offload", role != "actor_train", True)
            await self._engines.all("wake", "weights")

    async def end_weight_sync(self) -> None:
        """Give the devices to the engines."""
        if self.needed:
            if "actor_train" in self._models:
                await self._models["actor_train"].all("offload", True, True)
            self._models_are_here = False
            await self._engines.all("wake", "kv_cache")

    @asynccontextmanager
    async def for_models(self) -> AsyncIterator[None]:
        """Give the devices to the models for a while, between two rollouts."""
        await self.begin_update()
        yield
        await self.begin_rollout()
        if self.needed:
            await self._engines.all("wake", "weights")
            await self._engines.all("wake", "kv_cache")

    @asynccontextmanager
    async def trainer_weights(self) -> AsyncIterator[None]:
        """Have the trainer's weights where they can be read, for an engine that was made again in a rollout."""
        trainer = None if self._models_are_here else self._models.get("actor_train")
        if trainer is not None:
            await trainer.all("reload", True, True)
        yield
        if trainer is not None:
            await trainer.all("offload", True, True)

    async def memory(self, stage: str) -> dict[str, float]:
        """Return the most memory of each role's workers since the last call, in GiB, as ``memory/<stage>/<role>_gib``.

        Of a worker with a device the peak of what is allocated there, of others what the process has in main memory.
        """
        peaks = {role: max(await group.all("peak_memory")) for role, group in self._all.items()}
        return {f"memory/{stage}/{role}_gib": peak / 2**30 for role, peak in peaks.items()}
