"""The trainer's end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch

from roll.distributed.weight_sync.broadcast import BroadcastSender
from roll.distributed.weight_sync.buffers import BufferPool, pack
from roll.distributed.weight_sync.checkpoint import CheckpointSender
from roll.distributed.weight_sync.control import SENDER, Control, host_store
from roll.distributed.weight_sync.cuda_ipc import CudaIpcSender
from roll.distributed.weight_sync.errors import WeightSyncError
from roll.distributed.weight_sync.in_process import LocalChannel
from roll.distributed.weight_sync.manifest import Manifest
from roll.distributed.weight_sync.offer import WeightOffer
from roll.distributed.weight_sync.settings import (
    Place,
    WeightSyncSettings,
    choose_backend,
    choose_host,
    choose_method,
)
from roll.distributed.weight_sync.transport import Link, SendingEnd


class WeightSender:
    """Sends the trainer's weights to every engine.

    Lives in the process of train rank 0 from start to end of a run. The message store opens at once, so that
    :attr:`offer` can be given to the engines; the first :meth:`send` waits until all have joined.

        manifest = describe(trainer.named_parameters())            # on every train rank
        sender = WeightSender(manifest, {"engine 0": place})       # on rank 0
        receiver = WeightReceiver(sender.offer, "engine 0")        # in the engine's process
        metrics = sender.send(version, trainer.named_parameters()) # at the same time as
        await receiver.update(engine)

    After an error the sender is of no more use: close it, and make a new one for the engines that are left or were
    restarted.

    Args:
        manifest: What will be sent, from :func:`describe`.
        receivers: Name and place of every receiver.
        settings: How to send.
        device: Where the trainer's weights are.

    Raises:
        ValueError: If there are no receivers, or the method does not work with their places.
    """

    def __init__(
        self,
        manifest: Manifest,
        receivers: Mapping[str, Place],
        settings: WeightSyncSettings | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._settings = settings or WeightSyncSettings()
        self._manifest = manifest
        if not receivers:
            raise ValueError("weight sync: there are no receivers; name the engines that get the weights")
        here, places = Place.here(device), list(receivers.values())
        method = choose_method(here, places, self._settings.method)
        backend = choose_backend(here, places, self._settings.backend)
        host = self._settings.host or choose_host(here, places)
        self._sync = 0
        self._unusable: str | None = None
        self._end: SendingEnd | None = None
        self._link: Link | None = None
        channel, port = None, 0
        if method == "in_process":
            channel = LocalChannel(tuple(receivers))
        else:
            store = host_store(host, self._settings.timeout)
            port = store.port
            control = Control(store, SENDER, tuple(receivers), self._settings.timeout)
            staging = torch.device(
                device if method == "cuda_ipc" or (method, backend) == ("broadcast", "nccl") else "cpu"
            )
            pool = BufferPool(staging)
            self._link = Link(control, manifest, 0, len(receivers) + 1, staging, pool)
            control.post("manifest", manifest.to_json())
        self._offer = WeightOffer(method, backend, host, port, tuple(receivers), self._settings.timeout, channel)

    @property
    def offer(self) -> WeightOffer:
        """What the receivers need."""
        return self._offer

    @property
    def peak_buffer_bytes(self) -> int:
        """Most CPU memory that buckets took at once."""
        return self._link.pool.peak_bytes if self._link else 0

    def send(self, version: int, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, float]:
        """Send all weights; returns when every engine has loaded them.

        Every receiver must receive at the same time. In process, nothing is waited for: the update lies ready.

        Args:
            version: Of the policy; the engines take it over.
            named_tensors: Tensors of any shape by name; names, order and shapes are those that the manifest describes.

        Returns:
            ``weight_sync/seconds`` from the call to the last engine's answer, of which ``weight_sync/wait_seconds``
            until all were ready; ``weight_sync/bytes`` of the weights, once; ``weight_sync/gbytes_per_second``, bytes
            by the seconds after the wait, in 10⁹.

        Raises:
            WeightSyncError: If not every engine has them, saying which and why.
            ValueError: If the tensors are not what the manifest describes.
        """
        if self._unusable:
            raise WeightSyncError(f"weight sync: this sender is of no more use ({self._unusable}); make a new one")
        start = time.monotonic()
        if self._link is None:
            assert self._offer.channel is not None
            self._offer.channel.put(version, named_tensors)
            return _metrics(time.monotonic() - start, 0.0, self._manifest.nbytes)
        try:
            waited = self._send(self._link, version, named_tensors)
        except BaseException as error:
            told = self._failed(self._link, error)
            if told is error:
                raise
            raise told from error
        return _metrics(time.monotonic() - start, waited, self._manifest.nbytes)

    def close(self) -> None:
        """Free everything. Closing twice is harmless; a receiver that waits gets an error."""
        self._unusable = self._unusable or "it was closed"
        if self._end is not None:
            self._end.close()
        self._end = None
        # With the last reference the store's server ends.
        self._link = None

    def _send(self, link: Link, version: int, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> float:
        """Run one sync; return the seconds until all receivers were ready."""
        start, control = time.monotonic(), link.control
        if self._end is None:
            control.wait_for_all("joined", "to join")
            control.post("all_joined")
            self._end = self._make_end(link)
        sync, self._sync = self._sync, self._sync + 1
        control.post(f"sync/{sync}/version", version)
        control.wait_for_all(f"sync/{sync}/ready", "to receive weights")
        waited = time.monotonic() - start
        self._end.send(sync, pack(link.manifest, named_tensors, link.pool))
        link.pool.rest()
        control.wait_for_all(f"sync/{sync}/done", "to load the weights")
        self._end.finish(sync)
        keys = [f"sync/{sync}/{step}/{peer}" for peer in control.peers for step in ("ready", "done")]
        control.delete([f"sync/{sync}/version", *keys])
        return waited

    def _make_end(self, link: Link) -> SendingEnd:
        offer = self._offer
        if offer.method == "checkpoint":
            assert self._settings.directory is not None
            return CheckpointSender(link, self._settings.directory)
        return CudaIpcSender(link) if offer.method == "cuda_ipc" else BroadcastSender(link, offer.backend, offer.host)

    def _failed(self, link: Link, error: BaseException) -> BaseException:
        """Tell the receivers, find out who is gone, close; return the error to raise."""
        link.control.report(error)
        # Also gives those that live the time to read why: the store ends with this sender.
        silent = link.control.silent_peers()
        if silent and isinstance(error, WeightSyncError):
            error = type(error)(f"{error}. No word from {', '.join(silent)}: dead, cut off or stuck")
        self._unusable = str(error)
        self.close()
        return error


def _metrics(seconds: float, waited: float, nbytes: int) -> dict[str, float]:
    moving = max(seconds - waited, 1e-9)
    return {
        "weight_sync/seconds": seconds,
        "weight_sync/wait_seconds": waited,
        "weight_sync/bytes": float(nbytes),
        "weight_sync/gbytes_per_second": nbytes / moving / 1e9,
    }
