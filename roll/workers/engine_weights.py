"""An engine's end of the links over which the trainer sends weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch

from roll.distributed import worker_context
from roll.distributed.weight_sync import Place, WeightOffer, WeightReceiver, WeightSyncError
from roll.strategies.base import GenerationStrategy, LoadsInProcesses
from roll.workers.loading import device


class WeightInbox(Protocol):
    """Takes weights for one engine, over links by name."""

    async def places(self) -> list[Place]:
        """Return where weights must arrive."""
        ...

    async def open(self, link: str, offer: WeightOffer, names: Sequence[str]) -> None:
        """Take the other end of a link; ``names`` are those of the places, in their order."""
        ...

    async def receive(self, link: str) -> int:
        """Receive weights and load them; returns their version."""
        ...

    async def close(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        ...

    async def close_all(self) -> None:
        """Close every link."""
        ...


class OwnInbox:
    """Weights arrive in the engine worker, which hands them to its engine.

    Args:
        engine: What samples.
        where: Where tensors should arrive.
    """

    def __init__(self, engine: GenerationStrategy, where: torch.device) -> None:
        self._engine = engine
        self._where = where
        self._receivers: dict[str, WeightReceiver] = {}

    async def places(self) -> list[Place]:
        """Return where weights must arrive."""
        return [Place.here(device())]

    async def open(self, link: str, offer: WeightOffer, names: Sequence[str]) -> None:
        """Take the other end of a link."""
        await self.close(link)
        self._receivers[link] = WeightReceiver(offer, names[0], device=self._where)

    async def receive(self, link: str) -> int:
        """Receive weights and load them; returns their version."""
        return await self._receivers[link].update(self._engine)

    async def close(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        receiver = self._receivers.pop(link, None)
        if receiver is not None:
            receiver.close()

    async def close_all(self) -> None:
        """Close every link."""
        for link in list(self._receivers):
            await self.close(link)


class ProcessesInbox:
    """Weights arrive in each of the engine's own processes, straight from the trainer.

    Args:
        engine: A strategy whose processes load weights.
    """

    def __init__(self, engine: LoadsInProcesses) -> None:
        self._engine = engine
        self._link: str | None = None

    async def places(self) -> list[Place]:
        """Return where weights must arrive."""
        return await self._engine.call_workers(_place_of_process)

    async def open(self, link: str, offer: WeightOffer, names: Sequence[str]) -> None:
        """Take the other ends of a link; a process has one at a time."""
        self._link = link
        make = partial(_receiver_of_process, offer, tuple(names))
        await self._engine.connect_workers(make)

    async def receive(self, link: str) -> int:
        """Receive weights and load them; returns their version.

        Raises:
            WeightSyncError: If they did not arrive whole, or do not fit.
        """
        if link != self._link:
            raise WeightSyncError(f"weight sync: the engine's processes have no end of link {link!r}")
        try:
            return await self._engine.receive_weights()
        except RuntimeError as error:
            raise WeightSyncError(str(error)) from error

    async def close(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        if link == self._link:
            self._link = None
            await self._engine.disconnect_workers()

    async def close_all(self) -> None:
        """The processes end with the engine, and their links with them."""


def weight_inbox(engine: GenerationStrategy) -> WeightInbox:
    """Return the inbox of an engine: its own processes, where it has some and they are not beside the trainer."""
    if not isinstance(engine, LoadsInProcesses):
        return OwnInbox(engine, device())
    if worker_context().own_process or device().type == "cuda":
        return ProcessesInbox(engine)
    # A trainer in this very process hands over its tensors, and the engine passes them on through shared memory.
    return OwnInbox(engine, torch.device("cpu"))


def _receiver_of_process(offer: WeightOffer, names: Sequence[str], rank: int) -> WeightReceiver:
    return WeightReceiver(offer, names[rank], device=_device_of_process())


def _place_of_process(rank: int) -> Place:
    return Place.here(_device_of_process())


def _device_of_process() -> torch.device:
    """Return the device of an engine's process: the one that it has made its current one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
