"""Buckets in GPU memory that sender and receivers on the same GPU both see.

Written to the contract of ``torch.multiprocessing.reductions``. ``tests/gpu`` runs it on a GPU; elsewhere the order of
messages is tested with files in the place of GPU memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing import reductions

from roll.distributed.weight_sync.buffers import view_of
from roll.distributed.weight_sync.errors import WeightSyncError
from roll.distributed.weight_sync.manifest import Bucket, TensorSpec
from roll.distributed.weight_sync.transport import Link

_BUFFERS = 2


class CudaIpcSender:
    """Copies each bucket into one of two shared buffers and tells the receivers where it is."""

    def __init__(self, link: Link) -> None:
        require_cuda(link.device)
        self._link = link
        self._buffers: list[torch.Tensor] = []

    def send(self, sync: int, buckets: Iterator[tuple[Bucket, torch.Tensor]]) -> None:
        """Send all buckets; a buffer is overwritten when every receiver has copied it."""
        control = self._link.control
        if not self._buffers:
            size = self._link.manifest.largest_bucket
            self._buffers = [allocate(size, self._link.device) for _ in range(_BUFFERS)]
            for peer in control.peers:
                # Each receiver needs handles of its own: torch counts one reader per handle.
                control.post(f"ipc/buffers/{peer}", [share(buffer) for buffer in self._buffers])
        number = -1
        for number, (bucket, flat) in enumerate(buckets):
            if number >= _BUFFERS:
                self._wait_until_copied(sync, number - _BUFFERS)
            self._buffers[number % _BUFFERS][: bucket.nbytes].copy_(flat)
            # Another process does not see our stream: the copy must be over before the message.
            synchronize(self._link.device)
            control.post(f"ipc/{sync}/{number}/written")
        for last in range(max(number - _BUFFERS + 1, 0), number + 1):
            self._wait_until_copied(sync, last)

    def _wait_until_copied(self, sync: int, number: int) -> None:
        control = self._link.control
        control.wait_for_all(f"ipc/{sync}/{number}/copied", f"to copy bucket {number + 1}")
        control.delete([f"ipc/{sync}/{number}/copied/{peer}" for peer in control.peers])
        control.delete([f"ipc/{sync}/{number}/written"])

    def finish(self, sync: int) -> None:
        """Keep the buffers: their handles are known to all."""

    def close(self) -> None:
        """Free the buffers."""
        self._buffers = []


class CudaIpcReceiver:
    """Copies each bucket out of the shared buffer, so that the sender may go on while an engine loads."""

    def __init__(self, link: Link) -> None:
        require_cuda(link.device)
        self._link = link
        self._buffers: list[torch.Tensor] = []

    def receive(self, sync: int) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield tensors that lie in a copy of the bucket they came in."""
        control = self._link.control
        if not self._buffers:
            handles = control.wait(f"ipc/buffers/{control.name}", "to share its buffers")
            self._buffers = [open_shared(handle) for handle in handles]
        for number, bucket in enumerate(self._link.manifest.buckets):
            control.wait(f"ipc/{sync}/{number}/written", f"to write bucket {number + 1}")
            flat = self._link.pool.take(bucket.nbytes)
            flat.copy_(self._buffers[number % _BUFFERS][: bucket.nbytes])
            synchronize(self._link.device)
            control.post(f"ipc/{sync}/{number}/copied/{control.name}")
            for spec in bucket.specs:
                yield spec, view_of(spec, flat)
            del flat

    def close(self) -> None:
        """Let go of the sender's memory."""
        self._buffers = []


def require_cuda(device: torch.device) -> None:
    """Refuse devices whose memory cannot be shared this way.

    Raises:
        WeightSyncError: If ``device`` is no CUDA device.
    """
    if device.type != "cuda":
        raise WeightSyncError(f"weight sync: cuda_ipc shares GPU memory, but the device is {device}; use broadcast")


def allocate(size: int, device: torch.device) -> torch.Tensor:
    """Return a buffer that can be shared, ``[size]`` uint8."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything that was asked of it."""
    torch.cuda.synchronize(device)


def share(buffer: torch.Tensor) -> dict[str, Any]:
    """Return what another process needs to see ``buffer``, ``[size]`` uint8.

    These are plain values and no pickle: reading a pickle runs it, and it would come over a network.
    """
    _, arguments = reductions.reduce_tensor(buffer)
    _, size, stride, offset, _, _, device, *handle = arguments
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    encoded = [{"bytes": value.hex()} if isinstance(value, bytes) else value for value in handle]
    return {"gpu": uuid, "size": list(size), "stride": list(stride), "offset": offset, "handle": encoded}


def open_shared(shared: dict[str, Any]) -> torch.Tensor:
    """Return the buffer that :func:`share` described, ``[size]`` uint8.

    Raises:
        WeightSyncError: If this process does not see the GPU.
    """
    visible = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    if shared["gpu"] not in visible:
        raise WeightSyncError(
            f"weight sync: cuda_ipc needs GPU {shared['gpu']}, which this process does not see; it sees {list(visible)}"
        )
    handle = [bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value for value in shared["handle"]]
    return reductions.rebuild_cuda_tensor(
        torch.Tensor,
        torch.Size(shared["size"]),
        tuple(shared["stride"]),
        shared["offset"],
        torch.storage.TypedStorage,
        torch.uint8,
        visible[shared["gpu"]],
        *handle,
    )
