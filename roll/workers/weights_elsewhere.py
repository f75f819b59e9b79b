"""Weights that another program has: what gives them to the engines of this one in the place of a trainer."""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import ray
import torch

from roll.distributed.transport import pack, unpack
from roll.distributed.weight_exchange import Stored, WeightCall, WeightExchange
from roll.distributed.weight_sync import Manifest, Place, WeightsGoneError, WeightSyncError, WeightSyncSettings
from roll.distributed.weight_sync.buffers import unpacked
from roll.distributed.weight_sync.settings import Backend
from roll.workers.weights import WeightLinks, WholeWeights

_LOOK_EVERY: Final = 0.05


class WeightsElsewhere(Protocol):
    """What another program offers. Engines are given it as they are given the weights of a trainer of this one."""

    async def take(self, version: int) -> None:
        """Have a version ready.

        Raises:
            WeightsGoneError: It is not there any more.
            WeightSyncError: Nobody answers.
        """
        ...

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Do what a train rank does: ``open_weights``, ``send_weights`` and ``close_weights``."""
        ...


class StoredWeights:
    """Weights in Ray's object store. They are read in place, and the version that was taken last stays there.

    Args:
        exchange: Where they are.
    """

    def __init__(self, exchange: WeightExchange) -> None:
        self._exchange = exchange
        self._manifest = Manifest(())
        self._buckets: list[torch.Tensor] = []
        links = WeightLinks(WholeWeights(self._tensors, True, torch.device("cpu")))
        self._methods: dict[str, Callable[..., Any]] = {
            "open_weights": links.open,
            "send_weights": links.send,
            "close_weights": links.close,
        }

    async def take(self, version: int) -> None:
        """Map the weights of a version into the memory of this process.

        Raises:
            WeightsGoneError: They are not in the cluster any more.
        """
        self._buckets = []
        self._manifest, self._buckets = await asyncio.to_thread(self._fetched, version)

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Do what a train rank does."""
        return [await asyncio.to_thread(self._methods[method], *args)]

    def _fetched(self, version: int) -> tuple[Manifest, list[torch.Tensor]]:
        stored: Stored | None = self._exchange.call("stored", version)
        if stored is None:
            raise WeightsGoneError(f"weight sync: the weights of step {version} are not in the cluster any more")
        try:
            arrays = ray.get(stored.buckets)
        except ray.exceptions.RayError as error:
            raise WeightsGoneError(f"weight sync: the weights of step {version} are lost ({error})") from error
        with warnings.catch_warnings():
            # The memory is shared, and read-only on purpose: engines copy what they load.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            return Manifest.from_json(stored.manifest), [torch.from_numpy(array) for array in arrays]

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return unpacked(self._manifest, self._buckets)


class DistantTrainer:
    """A trainer of another program, which sends its weights to the engines of this one.

    Args:
        exchange: Where both find each other.
        caller: Name of this program; one that begins again has the same.
        backend: ``gloo`` or ``nccl``.
        timeout: Seconds that an answer may take.
    """

    def __init__(self, exchange: WeightExchange, caller: str, backend: Backend, timeout: float) -> None:
        self._exchange = exchange
        self._caller = caller
        self._backend = backend
        self._timeout = timeout
        self._trainer = ""

    async def take(self, version: int) -> None:
        """Find the trainer that offers a version.

        Raises:
            WeightsGoneError: Nobody offers it any more.
        """
        standing = await asyncio.to_thread(self._exchange.call, "standing")
        if version not in standing.versions or standing.trainer is None:
            raise WeightsGoneError(f"weight sync: nobody offers the weights of step {version} any more")
        self._trainer = standing.trainer

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Have the trainer do it."""
        if method == "open_weights":
            args = self._opening(*args)
        try:
            return [await asyncio.to_thread(self._asked, method, args)]
        except WeightsGoneError:
            if method == "close_weights":
                return []  # it went with the trainer
            raise

    def _opening(self, link: str, receivers: Mapping[str, Place], settings: WeightSyncSettings, *rest: Any) -> Any:
        return link, receivers, replace(settings, method="broadcast", backend=self._backend), *rest

    def _asked(self, method: str, args: tuple[Any, ...]) -> Any:
        call = WeightCall(uuid.uuid4().hex, self._caller, method, pack(args))
        is_there, answer = self._exchange.call("send", self._trainer, call), None
        until = time.monotonic() + self._timeout
        while is_there and answer is None:
            if time.monotonic() > until:
                raise WeightSyncError(
                    f"weight sync: the trainer of the experience store {self._exchange.name!r} has not answered for "
                    f"{self._timeout:g} s. Look at what it does, or raise weight_sync.timeout"
                )
            time.sleep(_LOOK_EVERY)
            is_there, answer = self._exchange.call("reply_to", self._trainer, call.name)
        if answer is None:
            raise WeightsGoneError("weight sync: the trainer that offered the weights has ended")
        found = unpack(answer)
        if isinstance(found, WeightSyncError):
            raise found
        return found
