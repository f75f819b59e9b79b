"""Weights between programs of one Ray cluster, without a disk between them: the trainer's side and the explorer's."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from roll.config import RLConfig, RunError
from roll.config.experience import ExperienceConfig
from roll.config.experience_sync import SyncConfig
from roll.pipelines.experience.syncing import Seen, explorer_name
from roll.pipelines.roles.core import Core
from roll.workers.engine import wire_dtype

if TYPE_CHECKING:
    from roll.distributed.weight_exchange import WeightExchange
    from roll.workers.offered_weights import Offering
    from roll.workers.weights_elsewhere import WeightsElsewhere


def without_disk(config: ExperienceConfig) -> bool:
    """Whether weights travel between two programs without checkpoints."""
    return config.sync is not None and config.sync.method != "checkpoint"


def exchange_of(config: ExperienceConfig) -> WeightExchange:
    """Return where the programs of a store exchange weights."""
    from roll.distributed.weight_exchange import WeightExchange

    assert config.name is not None, "a store in Ray without a name is refused"
    return WeightExchange(config.name, config.namespace)


def weights_elsewhere(config: ExperienceConfig, exchange: WeightExchange, timeout: float) -> WeightsElsewhere:
    """Return what gives the weights of the run that learns to engines of this one.

    Args:
        config: Says how they travel.
        exchange: Where they are found.
        timeout: Seconds that the trainer may take for an answer.
    """
    from roll.workers.weights_elsewhere import DistantTrainer, StoredWeights

    assert config.sync is not None and config.sync.method != "checkpoint", "asked for such a method only"
    if config.sync.method == "memory":
        return StoredWeights(exchange)
    patience = timeout if config.sync.timeout is None else min(timeout, config.sync.timeout)
    return DistantTrainer(exchange, explorer_name(config.writer), config.sync.method, patience)


class ExchangedVersions:
    """The versions that a trainer offers in the cluster.

    Args:
        exchange: Where they are found.
        writer: Name of this explorer among others.
    """

    def __init__(self, exchange: WeightExchange, writer: str | None) -> None:
        self._exchange = exchange
        self._name = explorer_name(writer)

    def look(self) -> Seen:
        """Return what is offered."""
        standing = self._exchange.call("standing")
        return Seen(standing.versions, standing.finished, standing.begun_at)

    def ask(self, step: int) -> None:
        """Ask for the weights of now."""
        self._exchange.call("ask", self._name, step)

    def is_answered(self, step: int) -> bool:
        """Whether they are there."""
        return bool(self._exchange.call("is_answered", self._name, step))

    @property
    def origin(self) -> str:
        """Who offers them."""
        return f"the run that learns from the experience store {self._exchange.name!r}"

    @property
    def how_to_keep_more(self) -> str:
        """What to do where a version is gone that is needed."""
        return (
            "it was continued behind it, or has another experience.sync. Let both have the same, and begin both again, "
            "or continue this one with style: dynamic_by_trainer"
        )


def offered_versions(keys: ExperienceConfig, config: RLConfig) -> OfferedVersions:
    """Return what offers the weights of a run that learns."""
    from roll.workers.offered_weights import Offering

    sync = keys.sync
    assert sync is not None and sync.method != "checkpoint", "checkpoints are written, not offered"
    kept = sync.kept if sync.style == "fixed" else 1
    size = config.weight_sync.bucket_mib * 1024**2
    offering = Offering(exchange_of(keys), uuid.uuid4().hex, sync.method, kept, wire_dtype(config), size)
    return OfferedVersions(offering, sync)


class OfferedVersions:
    """Offers the weights of a run that learns to explorers.

    Args:
        offering: Where, and how.
        sync: When.
    """

    def __init__(self, offering: Offering, sync: SyncConfig) -> None:
        self._offering = offering
        self._exchange = offering.exchange
        self._sync = sync
        self._version = 0

    async def begin(self, core: Core, step: int) -> None:
        """Begin, or go on from a step, whose weights are offered where explorers may need them."""
        self._version = step
        self._exchange.call("begin", self._offering.trainer, step)
        await self._offer_again(core)

    async def learned(self, core: Core, step: int) -> None:
        """Offer the weights of a step, where it is time, or somebody asks for them.

        Raises:
            RunError: Another run offers weights to the same explorers.
        """
        self._version = step
        asking = await self._asking(core)
        if self._sync.is_due(step) or asking:
            await self._offer(core)
            self._exchange.call("answer", asking)

    async def waiting(self, core: Core) -> None:
        """While nothing is there to learn from, give explorers that ask for them the weights of now.

        Raises:
            RunError: Another run offers weights to the same explorers.
        """
        asking = await self._asking(core)
        if asking:
            if self._version and self._version not in self._exchange.call("standing").versions:
                await self._offer(core)
            self._exchange.call("answer", asking)

    async def _asking(self, core: Core) -> dict[str, int]:
        """Return who asks for weights; first, begin again where the actor was made again and has lost what it knew."""
        standing = self._exchange.call("standing")
        if standing.trainer is None:
            await self.begin(core, self._version)
        elif standing.trainer != self._offering.trainer:
            raise RunError(
                f"Another run gives its weights to the explorers of the experience store {self._exchange.name!r}: two "
                "cannot. End one of them, or let it have experience.sync.method=checkpoint, or a store of its own."
            )
        asking: dict[str, int] = standing.asking
        return asking

    async def finish(self, core: Core) -> None:
        """Nothing more will come."""
        self._exchange.call("finish")
        await core.trainer.stop_offering()

    async def _offer_again(self, core: Core) -> None:
        if self._version and (self._sync.style != "fixed" or self._sync.is_due(self._version)):
            await self._offer(core)

    async def _offer(self, core: Core) -> None:
        async with core.devices.trainer_weights():
            await core.trainer.offer_weights(self._offering, self._version)
