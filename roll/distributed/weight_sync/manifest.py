"""What will be sent: names, shapes, types and where each tensor lies in which bucket."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DEFAULT_BUCKET_BYTES: Final = 256 * 1024**2

ALIGNMENT: Final = 64
"""Tensors start at multiples of this many bytes: any type can be viewed there, and copies are fast."""

_PIECES: Final = 16
_SMALLEST_BUCKET: Final = 8 * 1024**2
"""Packing, sending and loading overlap only if a model is several buckets; below this size a message costs too much."""
_ALONE: Final = 4 * 1024**2
"""Tensors of this many bytes travel alone: sending them from where they are is cheaper than copying them."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as it travels.

    Attributes:
        name: Hugging Face name.
        shape: Full shape.
        dtype: Type on the wire.
        offset: First byte in its bucket.
        aliases: Names of tensors tied to it: the same memory at the sender, sent once, delivered under every name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    aliases: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that are sent in one piece of ``nbytes`` bytes, gaps for alignment included."""

    specs: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the piece; at least one alignment unit, so that a bucket of empty tensors can be sent."""
        last = self.specs[-1]
        return max(last.offset + last.nbytes, ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a sync sends, in order. It stays the same from sync to sync."""

    buckets: tuple[Bucket, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all buckets."""
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def largest_bucket(self) -> int:
        """Bytes of the largest bucket."""
        return max((bucket.nbytes for bucket in self.buckets), default=0)

    def specs(self) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of sending."""
        for bucket in self.buckets:
            yield from bucket.specs

    def to_json(self) -> str:
        """Return the text that :meth:`from_json` reads."""
        rows = [
            [[s.name, list(s.shape), str(s.dtype).removeprefix("torch."), s.offset, list(s.aliases)] for s in b.specs]
            for b in self.buckets
        ]
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Rebuild a manifest."""
        return cls(
            tuple(
                Bucket(
                    tuple(
                        TensorSpec(name, tuple(shape), getattr(torch, dtype), offset, tuple(aliases))
                        for name, shape, dtype, offset, aliases in bucket
                    )
                )
                for bucket in json.loads(text)
            )
        )


def describe(
    named_tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    wire_dtype: torch.dtype | None = None,
) -> Manifest:
    """Lay out what ``named_tensors`` yields; no value is read or copied and none is kept alive.

    A strategy that gathers its parameters does so here as well, on every train rank: run the same iterator on all of
    them.

    Args:
        named_tensors: Names and full tensors of any shape.
        bucket_bytes: Most bytes of a bucket, unless one tensor alone has more. Models below 16 times that get smaller
            buckets.
        wire_dtype: Floating-point tensors are cast to this before they are sent (``torch.bfloat16`` for an engine that
            computes in it: half the bytes of float32). ``None`` sends them as they are.

    Raises:
        ValueError: If a name comes twice or an option cannot work.
    """
    if bucket_bytes < 1:
        raise ValueError(f"weight sync: bucket_bytes is {bucket_bytes}; it must be at least 1")
    if wire_dtype is not None and not wire_dtype.is_floating_point:
        raise ValueError(f"weight sync: wire_dtype is {wire_dtype}; it must be a floating-point type")
    specs: dict[tuple[object, ...], TensorSpec] = {}
    names: set[str] = set()
    # A weak reference keeps the identity of a storage from being given to another one, not its memory: tensors that
    # are gathered, yielded and freed one by one may get the same address, but never the same identity.
    storages: list[StorageWeakRef] = []
    for name, tensor in named_tensors:
        if name in names:
            raise ValueError(f"weight sync: the trainer yields {name!r} twice; every parameter must come once")
        names.add(name)
        storage = StorageWeakRef(tensor.untyped_storage())
        storages.append(storage)
        key = (storage.cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        known = specs.get(key) if tensor.numel() else None
        if known is None:
            cast = wire_dtype is not None and tensor.dtype.is_floating_point
            dtype = wire_dtype if cast and wire_dtype is not None else tensor.dtype
            specs[key if tensor.numel() else (name,)] = TensorSpec(name, tuple(tensor.shape), dtype, 0)
        else:
            specs[key] = TensorSpec(known.name, known.shape, known.dtype, 0, (*known.aliases, name))
    total = sum(spec.nbytes for spec in specs.values())
    useful = max(total // _PIECES, _SMALLEST_BUCKET)
    return Manifest(tuple(_fill_buckets(specs.values(), min(bucket_bytes, useful))))


def _fill_buckets(specs: Iterable[TensorSpec], bucket_bytes: int) -> Iterator[Bucket]:
    """Fill buckets in order; one that would overflow is closed first, and a large tensor gets one of its own."""
    filled: list[TensorSpec] = []
    offset = 0
    for spec in specs:
        large = spec.nbytes >= _ALONE or (filled and filled[-1].nbytes >= _ALONE)
        if filled and (large or offset + spec.nbytes > bucket_bytes):
            yield Bucket(tuple(filled))
            filled, offset = [], 0
        filled.append(TensorSpec(spec.name, spec.shape, spec.dtype, offset, spec.aliases))
        offset += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    if filled:
        yield Bucket(tuple(filled))
