"""Memory that a process lends to another one on its machine: large values of a call are written once, and read there.

Ray's object store would take a copy into pages that nobody has touched, and a round of messages for each value. Here
the memory is a file without a name (``memfd_create``), which the reader maps. It is written again when the reader has
dropped all that it made of it, however long that takes, and is gone when both processes are.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

_WORTH_IT: Final = 100 * 1024
"""Bytes from which memory is lent; what is smaller, Ray sends with the call itself."""

_APART: Final = 64
"""Bytes of which each buffer begins at a multiple; the first of them say whether the memory is lent."""

_LARGE: Final = 1 << 22
"""Bytes from which they are copied by several threads."""

_COPIES: Final = min(os.cpu_count() or 1, 4)

_MOST: Final = 128
"""Loans at a time; each takes two file descriptors."""

_FREE, _LENT, _DROPPED = 0, 1, 2
"""What the first byte says; a segment that was dropped is lent no more, and readers need not keep it mapped."""


class LoanError(RuntimeError):
    """Memory that was lent cannot be opened here."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A process, as far as others that could open its memory must know it.

    Attributes:
        place: The same for all processes of one machine (and container) and user.
        pid: Its number.
    """

    place: str
    pid: int

    @classmethod
    def here(cls) -> Neighbour | None:
        """Return this process; ``None`` where the system has no such memory."""
        place = _place()
        return None if place is None else cls(place, os.getpid())

    @property
    def is_near(self) -> bool:
        """Whether memory of that process can be opened here."""
        return self.place == _place() and os.access(f"/proc/{self.pid}/fd", os.R_OK | os.X_OK)


@dataclass(frozen=True, slots=True)
class Loan:
    """Where buffers lie that were lent; can be sent to their reader.

    Attributes:
        pid: Whose memory it is.
        descriptor: Its number there.
        inode: Of the memory: a descriptor may belong to another file by the time it is opened.
        size: Bytes of the memory.
        spans: Where each buffer begins and ends.
    """

    pid: int
    descriptor: int
    inode: int
    size: int
    spans: Sequence[tuple[int, int]]

    def open(self) -> list[memoryview]:
        """Return the buffers, read-only; the memory is the reader's until all that refers to them is gone.

        Raises:
            LoanError: If it cannot be opened, or was taken back.
        """
        mapped = _mapped(self)
        whole = np.frombuffer(mapped, np.uint8)
        whole.flags.writeable = False
        weakref.finalize(whole, _give_back, mapped, os.getpid()).atexit = False
        view = memoryview(cast(Any, whole))
        return [view[start:end] for start, end in self.spans]


def _give_back(mapped: mmap.mmap, reader: int) -> None:
    # A fork of the reader drops what it inherited, which the reader may still need.
    if os.getpid() == reader and mapped[0] == _LENT:
        mapped[0] = _FREE


_maps: dict[tuple[int, int], mmap.mmap] = {}
"""Memory of others that was opened here, by process and inode: pages that are mapped already cost nothing."""


def _mapped(loan: Loan) -> mmap.mmap:
    """Return the memory of a loan.

    Raises:
        LoanError: See :meth:`Loan.open`.
    """
    for key in [key for key, mapped in _maps.items() if mapped[0] == _DROPPED or not _lives(key[0])]:
        del _maps[key]
    known = _maps.get((loan.pid, loan.inode))
    if known is not None:
        return known
    try:
        descriptor = os.open(f"/proc/{loan.pid}/fd/{loan.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise LoanError(f"Memory that process {loan.pid} lent cannot be opened: {error.strerror}.") from error
    try:
        if os.fstat(descriptor).st_ino != loan.inode:
            raise LoanError(f"Memory that process {loan.pid} lent was taken back before it was read.")
        mapped = _maps[loan.pid, loan.inode] = mmap.mmap(descriptor, loan.size)
    finally:
        os.close(descriptor)
    return mapped


def _lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@dataclass(slots=True, eq=False)
class _Segment:
    """Memory of this process that can be lent.

    Attributes:
        descriptor: Of the file.
        bytes: The memory, ``[size]``.
        loan: The newest.
        reader: Who has it.
        until: When it is taken for lost by a reader that never opened it.
    """

    descriptor: int
    bytes: NDArray[np.uint8]
    loan: Loan | None = None
    reader: int = 0
    until: float = 0.0

    @classmethod
    def of(cls, size: int) -> _Segment:
        """Make one.

        Raises:
            OSError: If the system has none.
        """
        descriptor = os.memfd_create("roll-loan")
        try:
            os.ftruncate(descriptor, size)
            return cls(descriptor, np.frombuffer(mmap.mmap(descriptor, size), np.uint8))
        except (OSError, ValueError):
            os.close(descriptor)
            raise

    @property
    def is_free(self) -> bool:
        """Whether nobody reads it."""
        return bool(self.bytes[0] == _FREE)

    @property
    def is_lost(self) -> bool:
        """Whether it will not be given back."""
        return time.monotonic() > self.until or not _lives(self.reader)

    def write(self, spans: Sequence[tuple[int, int]], buffers: Sequence[memoryview]) -> None:
        """Copy buffers into it; several at a time, since one processor does not move what memory can."""

        def copy(part: int) -> None:
            for (start, end), each in islice(zip(spans, buffers, strict=True), part, None, parts):
                self.bytes[start:end] = np.frombuffer(each, np.uint8)

        parts = min(_COPIES, len(buffers)) if spans[-1][1] >= _LARGE else 1
        copies = [_copiers().submit(copy, part) for part in range(1, parts)]
        copy(0)
        for each in copies:
            each.result()

    def close(self) -> None:
        """Leave it to its reader, if it has one."""
        self.bytes[0] = _DROPPED
        os.close(self.descriptor)


@dataclass
class Lender:
    """What this process has to lend.

    Memory that comes back is lent again: pages that were written to before take a fraction of the time of new ones.
    """

    _free: list[_Segment] = field(default_factory=list)
    _away: list[_Segment] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self, buffers: Sequence[Any], reader: Neighbour, within: float = float("inf")) -> Loan | None:
        """Write buffers where a reader can open them.

        Args:
            buffers: Contiguous, of any type.
            reader: A process that is near.
            within: Seconds after which the reader will not ask for them any more.

        Returns:
            Where they lie, or ``None`` where they had better go another way: they are small, or there is no memory.
        """
        raw = [memoryview(each).cast("B") if isinstance(each, memoryview) else each.raw() for each in buffers]
        if sum(each.nbytes for each in raw) < _WORTH_IT:
            return None
        spans, end = [], 0
        for each in raw:
            start = -(-max(end, 1) // _APART) * _APART
            end = start + each.nbytes
            spans.append((start, end))
        with self._lock:
            try:
                segment = self._take(end, reader.pid)
            except OSError:
                return None
            if segment is None:
                return None
            segment.write(spans, raw)
            inode = os.fstat(segment.descriptor).st_ino
            segment.loan = Loan(os.getpid(), segment.descriptor, inode, len(segment.bytes), spans)
            segment.bytes[0], segment.reader, segment.until = _LENT, reader.pid, time.monotonic() + within
            self._away.append(segment)
            return segment.loan

    def recall(self, loan: Loan) -> None:
        """Take back what a reader may not have opened, and never will; one that has it open keeps it."""
        with self._lock:
            for segment in [each for each in self._away if each.loan is loan]:  # its memory may be lent again already
                self._away.remove(segment)
                segment.close()

    def _take(self, size: int, reader: int) -> _Segment | None:
        """Return a segment that is large enough, which nobody reads; one that this reader has mapped, if there is."""
        self._free += [each for each in self._away if each.is_free]
        self._away = [each for each in self._away if not each.is_free]
        fitting = [each for each in self._free if len(each.bytes) >= size]
        if fitting:
            best = min(fitting, key=lambda each: (each.reader != reader, len(each.bytes)))
            self._free.remove(best)
            return best
        for lost in [each for each in self._away if each.is_lost]:
            self._away.remove(lost)
            lost.close()
        if self._free:  # too small, and it makes room: there never are more than were lent at one time
            self._free.pop(0).close()
        return _Segment.of(_rounded(size)) if len(self._away) < _MOST else None


def _rounded(size: int) -> int:
    """Return a size that is at most a quarter above, so that a little more fits the next time."""
    step = max(mmap.PAGESIZE, 1 << max(size.bit_length() - 3, 0))
    return -(-size // step) * step


@cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_COPIES - 1, "lending")


LENDER: Final = Lender()
"""Of this process."""


@cache
def _place() -> str | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return f"{machine}/{processes}/{os.geteuid()}"
