"""Memory for buckets, and how tensors get in and out of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch

from roll.distributed.weight_sync.manifest import Bucket, Manifest, TensorSpec

_KEPT_BYTES: Final = 512 * 1024**2


class BufferPool:
    """Gives out flat buffers and uses their memory again once nothing refers to them.

    A consumer may keep what it got: memory that a tensor still refers to is left alone, and the next buffer gets
    other memory.

    Args:
        device: Where buffers are. On GPUs torch's own allocator already does what this class is for.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.peak_bytes = 0
        self._free: list[np.ndarray[Any, Any]] = []
        self._lent: list[tuple[weakref.ref[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """Return a buffer, ``[nbytes]`` uint8, with arbitrary contents."""
        if self.device.type != "cpu":
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self._reclaim()
        memory = next((one for one in self._free if one.nbytes >= nbytes), None)
        if memory is None:
            # What is free is too small for this bucket: let it go rather than hold both.
            self._free.clear()
            memory = np.empty(nbytes, dtype=np.uint8)
        else:
            # By identity: == of arrays compares elements.
            self._free = [one for one in self._free if one is not memory]
        # torch keeps this very view until the last tensor on it is gone, which a weak reference tells.
        view = memory[:nbytes]
        self._lent.append((weakref.ref(view), memory))
        self.peak_bytes = max(self.peak_bytes, self._held())
        return torch.from_numpy(view)

    def rest(self) -> None:
        """Between syncs: let go of the memory if it is much. A little is kept, for fresh memory is slow to touch."""
        if self._held() > _KEPT_BYTES:
            self._free.clear()
            self._lent.clear()

    def _held(self) -> int:
        return sum(memory.nbytes for _, memory in self._lent) + sum(memory.nbytes for memory in self._free)

    def _reclaim(self) -> None:
        still_lent = []
        for view, memory in self._lent:
            if view() is None:
                self._free.append(memory)
            else:
                still_lent.append((view, memory))
        self._lent = still_lent


def pack(
    manifest: Manifest, named_tensors: Iterable[tuple[str, torch.Tensor]], pool: BufferPool
) -> Iterator[tuple[Bucket, torch.Tensor]]:
    """Yield every bucket with its bytes, ``[nbytes]`` uint8, reading ``named_tensors`` as far as that needs.

    A contiguous tensor that fills a bucket alone is not copied.

    Raises:
        ValueError: If the tensors are not the ones that the manifest describes.
    """
    aliases = {alias for spec in manifest.specs() for alias in spec.aliases}
    stream = ((name, tensor) for name, tensor in named_tensors if name not in aliases)
    for bucket in manifest.buckets:
        if len(bucket.specs) == 1:
            yield bucket, _alone(bucket, _next(stream, bucket.specs[0]), pool)
            continue
        flat = pool.take(bucket.nbytes)
        for spec in bucket.specs:
            view_of(spec, flat).copy_(_next(stream, spec))
        yield bucket, flat
        # Or the pool would see a reference of ours when the next bucket is asked for.
        del flat
    extra = next(stream, None)
    if extra is not None:
        raise ValueError(f"weight sync: the trainer now yields {extra[0]!r}, which it did not when it was described")


def unpacked(manifest: Manifest, buckets: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors, of any shape, from the bytes of all buckets, each ``[nbytes]``; aliases share memory."""
    for bucket, flat in zip(manifest.buckets, buckets, strict=True):
        for spec in bucket.specs:
            tensor = view_of(spec, flat)
            yield spec.name, tensor
            for alias in spec.aliases:
                yield alias, tensor


def bytes_of(tensor: torch.Tensor, bucket: Bucket, device: torch.device) -> torch.Tensor | None:
    """Return the memory of ``tensor`` as the bytes of ``bucket``, if it holds nothing else and looks the same.

    Args:
        tensor: Of any shape.
        bucket: What is sent.
        device: Where buckets are.

    Returns:
        ``[nbytes]`` uint8, or ``None`` where a copy is needed.
    """
    spec = bucket.specs[0]
    alone = len(bucket.specs) == 1 and spec.nbytes == bucket.nbytes
    same = tensor.dtype == spec.dtype and tuple(tensor.shape) == spec.shape and tensor.device == device
    return tensor.detach().reshape(-1).view(torch.uint8) if alone and same and tensor.is_contiguous() else None


def _alone(bucket: Bucket, tensor: torch.Tensor, pool: BufferPool) -> torch.Tensor:
    flat = bytes_of(tensor, bucket, pool.device)
    if flat is None:
        flat = pool.take(bucket.nbytes)
        view_of(bucket.specs[0], flat).copy_(tensor)
    return flat


def _next(stream: Iterator[tuple[str, torch.Tensor]], spec: TensorSpec) -> torch.Tensor:
    name, tensor = next(stream, (None, None))
    if name != spec.name or tensor is None or tuple(tensor.shape) != spec.shape:
        found = "ends" if tensor is None else f"has {name!r} {list(tensor.shape)}"
        raise ValueError(
            f"weight sync: expected {spec.name!r} {list(spec.shape)}, but the trainer's stream of parameters {found}; "
            "names, order and shapes must be the same at every sync"
        )
    return tensor.detach()


def view_of(spec: TensorSpec, flat: torch.Tensor) -> torch.Tensor:
    """Return the tensor ``spec``, of any shape, inside the bytes of its bucket ``[nbytes]``, without a copy."""
    return flat[spec.offset : spec.offset + spec.nbytes].view(spec.dtype).view(spec.shape)
