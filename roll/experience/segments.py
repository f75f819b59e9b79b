"""Segments: the files that hold the members of groups, who may write them and who sweeps up after a kill."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import xxhash

from roll.common.disk import sync
from roll.experience.errors import SegmentError
from roll.trajectories.model import Trajectory
from roll.trajectories.store import open_trajectories, trajectories_of, write_trajectories

_KEPT: Final = 2
_CHUNK: Final = 1 << 20
_OURS: Final = re.compile(r"\.?([0-9a-f]{32})[-.]")


class SegmentReader:
    """Reads members of groups, and keeps the last segments that it read."""

    def __init__(self) -> None:
        self._tables: OrderedDict[Path, pa.Table] = OrderedDict()

    def read(self, path: Path, digest: str, rows: Sequence[tuple[int, int]]) -> list[list[Trajectory]]:
        """Read from one segment.

        Args:
            path: The file.
            digest: Of its content, as it was when its groups came in.
            rows: First row and number of rows of each group.

        Returns:
            The members of each.

        Raises:
            SegmentError: The file is damaged, missing or another one.
        """
        table = self._tables.pop(path, None)
        if table is None:
            table = _load(path, digest)
        self._tables[path] = table
        while len(self._tables) > _KEPT:
            self._tables.popitem(last=False)
        return [trajectories_of(table.slice(first, count)) for first, count in rows]


class SegmentWriter:
    """Writes segments under names of its own, and holds a lock that says that it lives.

    Segments of writers that were killed before the index knew of them are swept away, and no others: while a writer
    lives and holds its lock, the index may still get to know of its last one.

    Args:
        folder: Where segments are; it is there.
        is_known: Whether the index has a segment of this file name.
    """

    def __init__(self, folder: Path, is_known: Callable[[str], bool]) -> None:
        self._folder = folder
        self._is_known = is_known
        self._name, self._lock = _new_writer(folder)
        self._written = 0
        sweep(folder, is_known)

    def write(self, trajectories: Sequence[Trajectory], policy_version: int, run: str) -> tuple[str, str]:
        """Write a segment to the disk.

        Returns:
            Its file name, and the digest of its content.

        Raises:
            ValueError: A number does not fit its column.
        """
        path = self._next()
        write_trajectories(path, trajectories, step=policy_version, phase="train", run=run)
        return self._on_disk(path)

    def link(self, file: Path) -> tuple[str, str]:
        """Make a file of trajectories a segment without another copy of it: the same content under a second name.

        Returns:
            Its file name, and the digest of its content.

        Raises:
            OSError: The file is on another disk, or that disk knows no links.
        """
        path = self._next()
        os.link(file, path)
        return self._on_disk(path)

    def _next(self) -> Path:
        self._written += 1
        return self._folder / f"{self._name}-{self._written - 1:06d}.parquet"

    def _on_disk(self, path: Path) -> tuple[str, str]:
        digest = digest_of(path)
        sync(path)
        sync(self._folder)
        return path.name, digest

    def close(self) -> None:
        """Sweep away what the index did not take, and let go of the lock."""
        if self._lock >= 0:
            _sweep_writer(self._folder, self._name, self._is_known)
            _lock_path(self._folder, self._name).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def sweep(folder: Path, is_known: Callable[[str], bool]) -> None:
    """Remove what writers left that were killed before the index knew of it."""
    written = (_OURS.match(path.name) for path in folder.iterdir())
    for name in sorted({match[1] for match in written if match}):
        lock = _try_lock(_lock_path(folder, name))
        if lock is not None:
            _sweep_writer(folder, name, is_known)
            _lock_path(folder, name).unlink(missing_ok=True)
            os.close(lock)


def digest_of(path: Path) -> str:
    """Return a digest of the content of a file.

    Raises:
        OSError: It cannot be read.
    """
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of_bytes(content: bytes) -> str:
    """Return the digest that a file with this content has."""
    return xxhash.xxh3_128(content).hexdigest()


def _load(path: Path, digest: str) -> pa.Table:
    try:
        if digest_of(path) != digest:
            raise SegmentError(path, "is damaged or was replaced: its content is not what it was")
        with open_trajectories(path) as file:
            return file.read()
    except FileNotFoundError as error:
        raise SegmentError(path, "is missing") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SegmentError(path, f"cannot be read: {error}") from error


def _new_writer(folder: Path) -> tuple[str, int]:
    while True:
        name = uuid.uuid4().hex
        descriptor = os.open(_lock_path(folder, name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # swept away before it was locked


def _try_lock(path: Path) -> int | None:
    """Lock what a writer holds while it lives; ``None`` if it does. It is made where it is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        os.close(descriptor)
        return None


def _sweep_writer(folder: Path, name: str, is_known: Callable[[str], bool]) -> None:
    for path in folder.glob(f".{name}-*"):
        path.unlink(missing_ok=True)
    for path in folder.glob(f"{name}-*.parquet"):
        if not is_known(path.name):
            path.unlink(missing_ok=True)


def _lock_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"
