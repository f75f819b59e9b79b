"""Weights on their way from this process to the engine's own processes, a bucket of shared memory at a time.

A bucket is an anonymous file in memory (``memfd_create``). The engine's processes open it by way of this process's
file descriptor, so nothing is left behind if any of them is killed, and the size of ``/dev/shm`` (64 MB in many
containers) does not matter.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

DEFAULT_BUCKET_BYTES: Final = 256 * 1024**2

_ALIGNMENT: Final = 64
"""Tensors start at multiples of this many bytes: any type can be viewed there, and copies are fast."""

Row = tuple[str, str, list[int], int]
"""Name, type, shape and first byte of a tensor: what can travel in a message."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors in shared memory.

    Attributes:
        path: Where other processes of this user on this machine can open it.
        rows: What lies where.
        nbytes: Bytes of the whole.
    """

    path: str
    rows: list[Row]
    nbytes: int


def buckets_of(
    named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> Iterator[Bucket]:
    """Yield buckets with copies of all tensors, in order; a bucket is gone once the next one is asked for.

    Each tensor is copied before the next one is asked for, so a source may use its memory again.

    Args:
        named_tensors: Names and full tensors of any shape, on any device.
        bucket_bytes: Most bytes of a bucket, unless one tensor alone has more.
    """
    filling: _Writer | None = None
    try:
        for name, tensor in named_tensors:
            if filling is not None and not filling.has_room_for(tensor):
                yield filling.bucket
                filling.close()
                filling = None
            if filling is None:
                filling = _Writer(max(bucket_bytes, _aligned(tensor.nbytes), _ALIGNMENT))
            filling.add(name, tensor.detach())
            del tensor
        if filling is not None:
            yield filling.bucket
    finally:
        if filling is not None:
            filling.close()


def open_bucket(path: str, rows: Iterable[Row]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a bucket, of any shape, without copying them; the memory lives as long as any of them."""
    with open(path, "rb", buffering=0) as file:
        # Copy on write: torch wants memory that may be written, and nothing that a reader writes reaches the others.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for name, dtype_name, shape, offset in rows:
        dtype = getattr(torch, dtype_name)
        count = math.prod(shape)
        if count == 0:
            yield name, torch.empty(shape, dtype=dtype)
            continue
        yield name, torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


class _Writer:
    """Fills one bucket. Its file is as large as a bucket may get; pages that are never written take no memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._rows: list[Row] = []
        self._descriptor = os.memfd_create("roll-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, capacity)
        self._memory = mmap.mmap(self._descriptor, capacity)

    @property
    def bucket(self) -> Bucket:
        return Bucket(f"/proc/{os.getpid()}/fd/{self._descriptor}", self._rows, self._used)

    def has_room_for(self, tensor: torch.Tensor) -> bool:
        return self._used + _aligned(tensor.nbytes) <= self._capacity

    def add(self, name: str, tensor: torch.Tensor) -> None:
        shape = list(tensor.shape)
        self._rows.append((name, str(tensor.dtype).removeprefix("torch."), shape, self._used))
        if tensor.numel():
            place = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=self._used)
            place.view(shape).copy_(tensor)
        self._used += _aligned(tensor.nbytes)

    def close(self) -> None:
        os.close(self._descriptor)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
