"""The engines of a run: given new weights together, and made again one by one when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from roll.config import SamplingConfig
from roll.distributed import LocalGroup, WorkerDiedError, WorkerError, WorkerGroup, WorkerTimeoutError
from roll.distributed.weight_sync import WeightOffer, WeightSyncError, WeightSyncSettings, report_missing
from roll.pipelines.roles.pool import PATIENCE, restart
from roll.schedulers.replicas import GenerationClient
from roll.strategies.fingerprints import Fingerprints
from roll.workers.engine import wire_dtype
from roll.workers.engine_client import Engines

WATCH_SECONDS: Final = 2.0
"""Time between two looks at whether all engines live."""

EVERYBODY: Final = "all"
"""Name of the link to all engines."""


class GivesWeights(Protocol):
    """What engines get their weights from: the train ranks of this run, or the trainer of another one."""

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Call ``open_weights``, ``send_weights`` or ``close_weights``; results in order of rank."""
        ...


OnRestart = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _LinkOptions:
    settings: WeightSyncSettings
    wire_dtype: torch.dtype | None
    bucket_bytes: int


class EngineRole:
    """All engines (``actor_infer``).

    Args:
        group: The engines.
        trainers: What their weights come from; ``None`` where nothing is trained.
        config: The run.
    """

    def __init__(self, group: WorkerGroup, trainers: WorkerGroup | None, config: SamplingConfig) -> None:
        self.group = group
        self.engines = Engines(group.calls())
        self.restarts = 0
        self.version = 0
        self._trainers: GivesWeights | None = trainers
        self._timeout = config.rpc_timeout
        sync = config.weight_sync
        self._options = _LinkOptions(
            WeightSyncSettings(sync.method, min(sync.timeout, config.rpc_timeout), sync.host, sync.directory),
            wire_dtype(config),
            sync.bucket_mib * 1024**2,
        )
        self._offers: dict[str, WeightOffer] = {}
        self._listeners: list[OnRestart] = []
        # Brings the trainer's weights where they can be read, for roles that share devices.
        self.trainer_weights: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        # Weights are read between optimiser steps only: whoever trains holds this too.
        self.weights_at_rest = asyncio.Lock()

    def on_restart(self, listener: OnRestart) -> None:
        """Have ``listener`` told the rank of an engine that was made again, or is back after a long silence."""
        self._listeners.append(listener)

    def clients(self) -> Sequence[GenerationClient]:
        """Return a client for each engine, in order of rank."""
        return self.engines.clients()

    async def fingerprints(self, rank: int) -> Fingerprints | None:
        """Return fingerprints of the weights that an engine computes with; ``None`` if it cannot tell, or is gone."""
        try:
            found: Fingerprints | None = await self.group.one(rank, "fingerprints")
        except (WorkerDiedError, WorkerTimeoutError):
            return None
        return found

    async def publish(self, version: int) -> dict[str, float]:
        """Give every engine the trainer's weights as ``version``; the caller holds :attr:`weights_at_rest`.

        Returns:
            Seconds and bytes (see :meth:`roll.distributed.weight_sync.WeightSender.send`).
        """
        before, self.version = self.version, version
        try:
            try:
                return await self._publish(version)
            except (WorkerError, WeightSyncError):
                # An engine died meanwhile. The others may or may not have the weights, so all get them once more.
                await self.heal()
                return await self._publish(version)
        except BaseException:
            self.version = before
            raise

    async def take_from(self, source: GivesWeights) -> None:
        """Have the weights from somewhere else from now on; the caller holds :attr:`weights_at_rest`."""
        if source is not self._trainers:
            await self._unlink()
            self._trainers = source

    async def _publish(self, version: int) -> dict[str, float]:
        if EVERYBODY not in self._offers:
            await self._open(EVERYBODY, range(self.group.size))
        try:
            return await self._send(EVERYBODY, range(self.group.size), version)
        except BaseException:
            await self._unlink()
            raise

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Meanwhile, make engines that die again, with the weights of now."""
        if isinstance(self.group, LocalGroup):
            yield
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(), name="engine watch")
                yield
                watch.cancel()
        except ExceptionGroup as failures:
            # One task and the body: what failed first is what a reader wants to see.
            raise failures.exceptions[0] from None

    async def pause(self) -> None:
        """Freeze what is being sampled. An engine that died does nothing; the next weights make it again."""
        await self._all_that_live("pause")

    async def resume(self) -> None:
        """Go on."""
        await self._all_that_live("resume")

    async def heal(self) -> None:
        """Make every engine again that is dead."""
        for rank in range(self.group.size):
            if not await self._lives(rank):
                await self._restart(rank)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            lives = await asyncio.gather(*(self._lives(rank) for rank in range(self.group.size)))
            silent = [rank for rank, alive in enumerate(lives) if not alive]
            if silent:
                async with self.weights_at_rest:
                    for rank in silent:
                        if await self._lives(rank):
                            # It was made again or only held up; whoever gave it up meanwhile may use it again.
                            await self._tell(rank)
                        else:
                            await self._restart(rank)

    async def _all_that_live(self, method: str) -> None:
        async def call(rank: int) -> None:
            with suppress(WorkerDiedError):
                await self.group.one(rank, method)

        await asyncio.gather(*(call(rank) for rank in range(self.group.size)))

    async def _lives(self, rank: int) -> bool:
        try:
            return bool(await self.group.one(rank, "alive", timeout=min(PATIENCE, self._timeout)))
        except (WorkerDiedError, WorkerTimeoutError):
            return False

    async def _restart(self, rank: int) -> None:
        await restart(self.group, rank, min(PATIENCE, self._timeout))
        await self._unlink()
        if self._trainers is not None:
            link = _name(rank)
            async with self.trainer_weights():
                await self._open(link, [rank])
                await self._send(link, [rank], self.version)
                await self._close(link, [rank])
        self.restarts += 1
        await self._tell(rank)

    async def _tell(self, rank: int) -> None:
        for listener in self._listeners:
            await listener(rank)

    async def _open(self, link: str, ranks: Sequence[int]) -> None:
        assert self._trainers is not None
        places = {rank: await self.group.one(rank, "places") for rank in ranks}
        named = {f"{_name(rank)}.{part}": place for rank in ranks for part, place in enumerate(places[rank])}
        options = self._options
        offers: list[WeightOffer | None] = await self._trainers.all(
            "open_weights", link, named, options.settings, options.wire_dtype, options.bucket_bytes
        )
        offer = next(offer for offer in offers if offer is not None)
        self._offers[link] = offer
        for rank in ranks:
            names = [f"{_name(rank)}.{part}" for part in range(len(places[rank]))]
            await self.group.one(rank, "open_weights", link, offer, names)

    async def _send(self, link: str, ranks: Sequence[int], version: int) -> dict[str, float]:
        """Send and receive at the same time.

        Raises:
            WorkerError, WeightSyncError: What went wrong first.
        """
        assert self._trainers is not None
        sending = asyncio.ensure_future(self._trainers.all("send_weights", link, version))
        receiving = {
            asyncio.ensure_future(self.group.one(rank, "receive_weights", link)): f"{_name(rank)}.0" for rank in ranks
        }
        failure: BaseException | None = None
        running: set[asyncio.Future[Any]] = {sending, *receiving}
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                # Of one that was given up below, because nothing will be sent to it any more, there is none.
                error = None if call.cancelled() else call.exception()
                if error is not None and failure is None:
                    failure = error
                if isinstance(error, WorkerDiedError) and call in receiving:
                    # The trainer cannot know: it would wait for this engine until its time is over.
                    await asyncio.to_thread(report_missing, self._offers[link], receiving[call], str(error))
                if error is not None and call is sending:
                    for other in running:
                        other.cancel()
        if failure is not None:
            raise failure
        if self._offers[link].method == "in_process":
            # Handed over, not sent: there is nothing to measure.
            return {}
        return dict(next((report for report in sending.result() if report), {}))

    async def _close(self, link: str, ranks: Sequence[int]) -> None:
        del self._offers[link]
        if self._trainers is not None:
            await self._trainers.all("close_weights", link)
        for rank in ranks:
            with suppress(WorkerDiedError, WorkerTimeoutError):
                await self.group.one(rank, "close_weights", link)

    async def _unlink(self) -> None:
        """Close the link to all engines; the next weights make a new one."""
        if EVERYBODY in self._offers:
            await self._close(EVERYBODY, range(self.group.size))


def _name(rank: int) -> str:
    return f"engine {rank}"
