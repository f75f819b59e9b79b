"""A train rank's end of the exchange with programs that explore: versions of its weights, for who wants them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from roll.distributed.transport import pack, unpack
from roll.distributed.weight_exchange import WeightCall, WeightExchange
from roll.distributed.weight_sync import Manifest, WeightsGoneError, WeightSyncError, describe
from roll.distributed.weight_sync.buffers import BufferPool, unpacked
from roll.distributed.weight_sync.buffers import pack as packed_buckets
from roll.workers.weights import WeightLinks, WholeWeights

_LOOK_EVERY: Final = 0.05
"""Seconds between two looks at what explorers ask."""

_END_SECONDS: Final = 5.0
"""How long the end waits for a call that is under way."""


@dataclass(frozen=True, slots=True)
class Offering:
    """How versions are offered.

    Attributes:
        exchange: Where explorers find them.
        trainer: The name of this start of the program.
        method: ``memory`` puts them into Ray's object store; the others send them to engines that ask.
        kept: How many of the newest there are.
        wire_dtype: Type in which they travel; ``None`` for that which they have.
        bucket_bytes: Most bytes of a piece.
    """

    exchange: WeightExchange
    trainer: str
    method: Literal["memory", "gloo", "nccl"]
    kept: int
    wire_dtype: torch.dtype | None
    bucket_bytes: int


class OfferedWeights:
    """Offers the weights of now as a version.

    Args:
        weights: What is offered.
    """

    def __init__(self, weights: WholeWeights) -> None:
        self._weights = weights
        self._manifest: Manifest | None = None
        self._pool = BufferPool()
        self._server: SnapshotServer | None = None

    def offer(self, offering: Offering, version: int) -> None:
        """Let explorers have the weights of now.

        Raises:
            WeightSyncError: The cluster does not take them.
        """
        if self._manifest is None:
            size, dtype = offering.bucket_bytes, offering.wire_dtype
            self._manifest = describe(self._weights.stream(), bucket_bytes=size, wire_dtype=dtype)
        try:
            with self._weights.read() as tensors:
                if self._weights.speaks:
                    buckets = (flat for _, flat in packed_buckets(self._manifest, tensors, self._pool))
                    self._give(offering, version, self._manifest, buckets)
        finally:
            self._pool.rest()

    def _give(self, offering: Offering, version: int, manifest: Manifest, buckets: Iterator[torch.Tensor]) -> None:
        call = offering.exchange.call
        if offering.method == "memory":
            number = -1
            for number, flat in enumerate(buckets):
                call("put", number, flat.numpy())
            if not call("offer", version, offering.kept, manifest.to_json(), number + 1):
                raise WeightSyncError(
                    f"weight sync: the actor that has the weights of the experience store {offering.exchange.name!r} "
                    "was made again while it took them"
                )
            return
        if self._server is None or self._server.offering.trainer != offering.trainer:
            self.close()
            where = self._weights.device if offering.method == "nccl" else torch.device("cpu")
            self._server = SnapshotServer(offering, manifest, where)
        self._server.keep(version, [flat.clone() for flat in buckets])
        call("offer", version, offering.kept)

    def close(self) -> None:
        """Send nothing more."""
        if self._server is not None:
            self._server.close()
        self._server = None


class SnapshotServer:
    """Keeps copies of the newest versions in memory and sends them to engines that ask, while training goes on.

    Args:
        offering: How.
        manifest: What is where in a copy.
        device: Where tensors leave from.
    """

    def __init__(self, offering: Offering, manifest: Manifest, device: torch.device) -> None:
        self.offering = offering
        self._manifest = manifest
        self._device = device
        self._snapshots: dict[int, list[torch.Tensor]] = {}
        self._links: dict[str, _ExplorerLinks] = {}
        self._closing = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True, name="weight exchange")
        self._listener.start()

    def keep(self, version: int, buckets: list[torch.Tensor]) -> None:
        """Keep a version, the bytes ``[nbytes]`` of each bucket, and forget those that are too old."""
        kept = {**self._snapshots, version: buckets}
        self._snapshots = {number: kept[number] for number in sorted(kept)[-self.offering.kept :]}

    def close(self) -> None:
        """Send nothing more."""
        self._closing.set()
        self._listener.join(_END_SECONDS)
        for links in list(self._links.values()):
            links.close()

    def _listen(self) -> None:
        exchange, trainer = self.offering.exchange, self.offering.trainer
        try:
            while not self._closing.wait(_LOOK_EVERY):
                for call in exchange.call("calls", trainer):
                    # A thread each: an explorer that died holds up nobody but itself.
                    work = threading.Thread(target=self._answer, args=(call,), daemon=True, name="weights to engines")
                    work.start()
        except WeightSyncError as error:
            logging.getLogger(__name__).warning("%s. Engines of other programs get no weights from here", error)

    def _answer(self, call: WeightCall) -> None:
        try:
            answer = pack(self._do(call))
        except Exception as error:  # whatever it is, it is the caller's
            answer = pack(error if isinstance(error, WeightSyncError) else WeightSyncError(f"weight sync: {error}"))
        with suppress(WeightSyncError):  # who asked hears nothing either, and says so
            self.offering.exchange.call("reply", self.offering.trainer, call.name, answer)

    def _do(self, call: WeightCall) -> Any:
        links = self._links.setdefault(call.caller, _ExplorerLinks(self._tensors, self._device))
        function: Callable[..., Any] = getattr(links, call.method)
        return function(*unpack(call.args))

    def _tensors(self, version: int | None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and tensors of a version, or of any."""
        snapshots = self._snapshots
        chosen = max(snapshots) if version is None else version
        if chosen not in snapshots:
            raise WeightsGoneError(f"weight sync: the trainer has the weights of step {chosen} no more")
        return unpacked(self._manifest, snapshots[chosen])


class _ExplorerLinks:
    """The links to the engines of one explorer."""

    def __init__(self, tensors: Callable[[int | None], Iterator[tuple[str, torch.Tensor]]], device: torch.device):
        self._version: int | None = None
        self._links = WeightLinks(WholeWeights(lambda: tensors(self._version), True, device))

    def open_weights(self, *args: Any) -> Any:
        self._version = None
        return self._links.open(*args)

    def send_weights(self, link: str, version: int) -> dict[str, float]:
        self._version = version
        return self._links.send(link, version)

    def close_weights(self, link: str) -> None:
        self._links.close(link)

    def close(self) -> None:
        self._links.close_all()
