"""Buckets by collective broadcast: gloo for CPU memory, NCCL between GPUs.

The group is made by hand and known to nobody else. ``init_process_group`` would make the default group, which a trainer
with several ranks already has and which a process can have only once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from roll.distributed.weight_sync.buffers import view_of
from roll.distributed.weight_sync.errors import WeightSyncError
from roll.distributed.weight_sync.manifest import Bucket, TensorSpec
from roll.distributed.weight_sync.settings import Backend
from roll.distributed.weight_sync.transport import Link

_IN_FLIGHT = 2
_SLACK = 2
"""How many times our time limit the group's own is: ours comes first, because it says who is missing."""


class BroadcastGroup:
    """A process group of the sender (rank 0) and its receivers.

    Args:
        link: Who takes part.
        backend: ``gloo`` or ``nccl``.
        address: Address of this machine that the others can reach.

    Raises:
        WeightSyncError: If the group cannot be made.
    """

    def __init__(self, link: Link, backend: Backend, address: str) -> None:
        self._link = link
        self._others = link.control.peers
        store = distributed.PrefixStore("broadcast", link.control.store)
        make = _make_gloo if backend == "gloo" else _make_nccl
        self._under_way: set[distributed.Work] = set()
        try:
            self._group = make(store, link, address)
        except RuntimeError as error:
            raise WeightSyncError(
                f"weight sync: {link.control.name} could not make the {backend} group: {error}"
            ) from error

    def start(self, flat: torch.Tensor) -> distributed.Work:
        """Begin the broadcast of ``flat`` ``[nbytes]`` from rank 0; its memory is in use until :meth:`wait` returns."""
        with _as_sync_error(self._link, "to start a bucket"):
            work = self._group.broadcast(flat, 0)
        self._under_way.add(work)
        return work

    def wait(self, work: distributed.Work, doing: str) -> None:
        """Wait for one broadcast.

        Raises:
            WeightSyncError: If the connection broke, somebody failed, or it took too long.
        """
        with _as_sync_error(self._link, doing):
            self._link.control.poll(work.is_completed, doing, lambda: self._others)
            work.wait()
        self._under_way.discard(work)

    def close(self) -> None:
        """End the group; broadcasts under way fail, here or elsewhere."""
        if self._group is None:
            return
        held, self._group = [self._group], None
        held[0].abort()
        if self._under_way:
            # Gloo cannot abort: a group goes only when its last broadcast has, which takes until the other side closes
            # its connection or the time limit is over. Nobody should wait for that; it holds no more than two buckets.
            threading.Thread(target=held.clear, daemon=True, name="weight sync: end of a broken group").start()
            self._under_way.clear()


@contextmanager
def _as_sync_error(link: Link, doing: str) -> Iterator[None]:
    """Turn the errors of a process group, plain ``RuntimeError``, into ours."""
    try:
        yield
    except WeightSyncError:
        raise
    except RuntimeError as error:
        # The cause may have been reported: it says more than a broken connection.
        link.control.raise_failure()
        raise WeightSyncError(
            f"weight sync: {link.control.name} lost a connection while it waited for {', '.join(link.control.peers)} "
            f"{doing} ({error})"
        ) from error


def _make_gloo(store: distributed.Store, link: Link, address: str) -> Any:
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=link.control.timeout * _SLACK)
    options._threads = _IN_FLIGHT
    return distributed.ProcessGroupGloo(store, link.rank, link.size, options)


def _make_nccl(store: distributed.Store, link: Link, address: str) -> Any:
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=link.control.timeout * _SLACK)
    return distributed.ProcessGroupNCCL(store, link.rank, link.size, options)


class BroadcastSender:
    """Rank 0: packs a bucket while the one before it is on its way."""

    def __init__(self, link: Link, backend: Backend, address: str) -> None:
        self._group = BroadcastGroup(link, backend, address)

    def send(self, sync: int, buckets: Iterator[tuple[Bucket, torch.Tensor]]) -> None:
        """Send all buckets; at most two are in memory."""
        under_way: deque[tuple[distributed.Work, str]] = deque()
        for number, (_, flat) in enumerate(buckets, 1):
            under_way.append((self._group.start(flat), f"to take bucket {number}"))
            # The work keeps the bucket; with our own reference gone its memory is free once the work is done.
            del flat
            if len(under_way) == _IN_FLIGHT:
                self._group.wait(*under_way.popleft())
        while under_way:
            self._group.wait(*under_way.popleft())

    def finish(self, sync: int) -> None:
        """Nothing is left of a broadcast."""

    def close(self) -> None:
        """End the group."""
        self._group.close()


class BroadcastReceiver:
    """Every other rank: a bucket arrives while the one before it is read."""

    def __init__(self, link: Link, backend: Backend, address: str) -> None:
        self._link = link
        self._group = BroadcastGroup(link, backend, address)

    def receive(self, sync: int) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield tensors that lie in the bucket they came in; a large one may be the receiver's own parameter.

        A reader that keeps none holds three buckets: the one that arrives, the one being read, and the one before, to
        which the reader's own loop variable still refers when it asks for the next.
        """
        under_way: deque[tuple[Bucket, torch.Tensor, distributed.Work]] = deque()
        buckets = iter(self._link.manifest.buckets)
        number = 0
        while True:
            for bucket in buckets:
                flat = self._link.pool.take(bucket.nbytes)
                under_way.append((bucket, flat, self._group.start(flat)))
                del flat
                if len(under_way) == _IN_FLIGHT:
                    break
            if not under_way:
                return
            number += 1
            bucket, flat, work = under_way.popleft()
            self._group.wait(work, f"to send bucket {number} of {len(self._link.manifest.buckets)}")
            del work
            for spec in bucket.specs:
                yield spec, view_of(spec, flat)
            del flat

    def close(self) -> None:
        """End the group."""
        self._group.close()
