"""Weights through a folder: slow, and independent of any network between trainer and engines."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from roll.distributed.weight_sync.buffers import view_of
from roll.distributed.weight_sync.errors import WeightSyncError
from roll.distributed.weight_sync.manifest import Bucket, TensorSpec
from roll.distributed.weight_sync.transport import Link


def _file_name(number: int, count: int) -> str:
    """Return the name that Hugging Face gives to a part of a model."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


class CheckpointSender:
    """Writes one safetensors file per bucket into a folder of its own, which exists whole or not at all."""

    def __init__(self, link: Link, directory: Path) -> None:
        self._link = link
        self._directory = directory
        # Several trainers, or a restarted one, may share the directory.
        self._name = f"weights-{uuid.uuid4().hex[:12]}"
        self._written: Path | None = None

    def send(self, sync: int, buckets: Iterator[tuple[Bucket, torch.Tensor]]) -> None:
        """Write the folder, then announce it."""
        folder = self._directory / f"{self._name}-{sync:06d}"
        partial = folder.with_name(folder.name + ".partial")
        self._written = partial
        partial.mkdir(parents=True)
        count = len(self._link.manifest.buckets)
        for number, (bucket, flat) in enumerate(buckets, 1):
            tensors = {spec.name: view_of(spec, flat) for spec in bucket.specs}
            path = partial / _file_name(number, count)
            save_file(tensors, path, metadata={"format": "pt"})
            with path.open("rb") as written:
                # Other machines read it through a shared file system.
                os.fsync(written.fileno())
        partial.rename(folder)
        self._written = folder
        self._link.control.post(f"folder/{sync}", str(folder))

    def finish(self, sync: int) -> None:
        """Delete the folder: everybody has loaded it."""
        self._remove()
        self._link.control.delete([f"folder/{sync}"])

    def close(self) -> None:
        """Delete what a failed sync left."""
        self._remove()

    def _remove(self) -> None:
        if self._written is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._written)
            self._written = None


class CheckpointReceiver:
    """Reads the folder, one tensor at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def receive(self, sync: int) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield the tensors, of any shape, of the folder that the sender announced.

        Raises:
            WeightSyncError: A file of the folder is not there.
        """
        folder = Path(self._link.control.wait(f"folder/{sync}", "to write the weights"))
        buckets = self._link.manifest.buckets
        for number, bucket in enumerate(buckets, 1):
            path = folder / _file_name(number, len(buckets))
            if not path.is_file():
                raise WeightSyncError(
                    f"weight sync: {self._link.control.name} does not find {path}, which the trainer wrote; the "
                    "directory must be the same on both machines (a shared file system)"
                )
            with safe_open(path, framework="pt", device=str(self._link.device)) as part:
                for spec in bucket.specs:
                    yield spec, part.get_tensor(spec.name)

    def close(self) -> None:
        """Nothing is held."""
