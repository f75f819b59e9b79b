"""An engine's end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import torch

from roll.distributed.weight_sync.broadcast import BroadcastReceiver
from roll.distributed.weight_sync.buffers import BufferPool
from roll.distributed.weight_sync.checkpoint import CheckpointReceiver
from roll.distributed.weight_sync.control import SENDER, Control, join_store
from roll.distributed.weight_sync.cuda_ipc import CudaIpcReceiver
from roll.distributed.weight_sync.errors import WeightSyncError
from roll.distributed.weight_sync.manifest import Manifest
from roll.distributed.weight_sync.offer import WeightOffer
from roll.distributed.weight_sync.settings import local_address
from roll.distributed.weight_sync.transport import Link, ReceivingEnd
from roll.strategies.base import WeightUpdate

_AFTER_TRAINER: Final = 5.0
"""Seconds by which an engine waits longer than the trainer, which knows who is missing and says so."""

_REPORT_SECONDS: Final = 5.0


class TakesWeights(Protocol):
    """What an engine must offer: see :class:`roll.strategies.base.GenerationStrategy`."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights."""
        ...


class WeightReceiver:
    """Receives weights in the process that loads them.

    It connects at the first :meth:`update` or :meth:`receive`. After an error it is of no more use: close it, and make
    a new one from the offer of a new sender.

    Args:
        offer: From the sender.
        name: Which of the sender's receivers this is.
        device: Where tensors should arrive, for methods that can choose: NCCL, CUDA IPC, checkpoint.

    Raises:
        ValueError: If the sender does not know the name.
    """

    def __init__(self, offer: WeightOffer, name: str, *, device: torch.device | str = "cpu") -> None:
        if name not in offer.receivers:
            raise ValueError(f"weight sync: the trainer knows no receiver {name!r}; it knows {list(offer.receivers)}")
        self.name = name
        self._offer = offer
        self._device = torch.device(device)
        self._sync = 0
        self._link: Link | None = None
        self._end: ReceivingEnd | None = None
        self._unusable: str | None = None

    @property
    def peak_buffer_bytes(self) -> int:
        """Most CPU memory that buckets took at once."""
        return self._link.pool.peak_bytes if self._link else 0

    async def update(self, engine: TakesWeights) -> int:
        """Receive one sync into ``engine``; return the version that it now has.

        The event loop stays free until weights arrive.

        Raises:
            WeightSyncError: If the weights did not arrive whole.
            Exception: What the engine raises; the trainer is told.
        """
        with self._telling_the_trainer():
            update = await asyncio.to_thread(self._begin)
            await engine.update_weights(update)
            self._done(update)
        return update.version

    @contextmanager
    def receive(self) -> Iterator[WeightUpdate]:
        """Receive one sync; the tensors come while they are read, and all must be read.

        A tensor that is kept keeps the whole bucket that it came in: copy it.

        Raises:
            WeightSyncError: If the weights did not arrive whole.
        """
        with self._telling_the_trainer():
            update = self._begin()
            yield update
            self._done(update)

    def close(self) -> None:
        """Free everything. Closing twice is harmless."""
        self._unusable = self._unusable or "it was closed"
        if self._end is not None:
            self._end.close()
        self._end = self._link = None

    @contextmanager
    def _telling_the_trainer(self) -> Iterator[None]:
        if self._unusable:
            raise WeightSyncError(f"weight sync: this receiver is of no more use ({self._unusable}); make a new one")
        try:
            yield
        except BaseException as error:
            if self._link is not None:
                self._link.control.report(error)
            self._unusable = f"{type(error).__name__}: {error}"
            self.close()
            raise

    def _begin(self) -> WeightUpdate:
        """Wait for the next sync and return its update, which is not read yet."""
        if self._offer.channel is not None:
            return self._offer.channel.take(self.name, self._offer.timeout)
        if self._end is None:
            self._end = self._connect()
        assert self._link is not None
        control = self._link.control
        sync, self._sync = self._sync, self._sync + 1
        version = control.wait(f"sync/{sync}/version", "to send weights")
        control.post(f"sync/{sync}/ready/{self.name}")
        return WeightUpdate(int(version), _CountedTensors(self._end, self._link.manifest, sync))

    def _done(self, update: WeightUpdate) -> None:
        """Check that all was read and tell the sender."""
        if not isinstance(update.named_tensors, _CountedTensors):
            return
        update.named_tensors.check_all_read(self.name)
        assert self._link is not None
        self._link.pool.rest()
        self._link.control.post(f"sync/{update.named_tensors.sync}/done/{self.name}")

    def _connect(self) -> ReceivingEnd:
        offer = self._offer
        store = join_store(offer.host, offer.port, self.name, offer.timeout)
        control = Control(store, self.name, (SENDER,), offer.timeout + _AFTER_TRAINER)
        manifest = Manifest.from_json(control.wait("manifest", "to describe the weights"))
        staging = torch.device("cpu") if (offer.method, offer.backend) == ("broadcast", "gloo") else self._device
        rank = offer.receivers.index(self.name) + 1
        size = len(offer.receivers) + 1
        self._link = link = Link(control, manifest, rank, size, staging, BufferPool(staging))
        control.post(f"joined/{self.name}")
        control.wait("all_joined", "to see all engines join")
        if offer.method == "checkpoint":
            return CheckpointReceiver(link)
        if offer.method == "cuda_ipc":
            return CudaIpcReceiver(link)
        return BroadcastReceiver(link, offer.backend, local_address(offer.host, offer.port))


class _CountedTensors:
    """The tensors of one sync, aliases included; can be read once, and knows how far it was."""

    def __init__(self, end: ReceivingEnd, manifest: Manifest, sync: int) -> None:
        self.sync = sync
        self._tensors = end.receive(sync)
        self._read, self._total = 0, sum(1 for _ in manifest.specs())

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for spec, tensor in self._tensors:
            self._read += 1
            yield spec.name, tensor
            for alias in spec.aliases:
                yield alias, tensor
            del tensor

    def check_all_read(self, receiver: str) -> None:
        if self._read != self._total or next(self._tensors, None) is not None:
            raise WeightSyncError(
                f"weight sync: {receiver} read {self._read} of {self._total} tensors; an engine must read all of them"
            )


def report_missing(offer: WeightOffer, name: str, cause: str) -> None:
    """Tell the trainer in the place of a receiver that died, so that it does not wait for it.

    What cannot be told, because the trainer is gone as well, is left untold.

    Args:
        offer: From the sender.
        name: The receiver that died.
        cause: What is known about its end.
    """
    if offer.channel is not None:
        return
    with suppress(WeightSyncError):
        store = join_store(offer.host, offer.port, name, _REPORT_SECONDS)
        Control(store, name, (SENDER,), _REPORT_SECONDS).report(WeightSyncError(cause))
