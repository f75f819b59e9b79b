"""One run at a time in a folder: a lock that the kernel lets go when its process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import functools
import itertools
import json
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

LOCK_FILE = "run.lock"

_TRIES = 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that have no locks."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a folder.

    Attributes:
        pid: Its number on its machine.
        host: Its machine.
        since: When it took the folder, local time with its offset from UTC.
        command: The command line that started it.
    """

    pid: int
    host: str
    since: str
    command: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return what others are to read about this process."""
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(os.getpid(), socket.gethostname(), since, shlex.join(getattr(sys, "orig_argv", sys.argv)))

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process is there; of another machine's that is not known, so it is."""
        if not self.is_here:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


class FolderInUseError(RuntimeError):
    """Another run has the folder.

    Attributes:
        folder: The folder.
        holder: The process that has it, where that can be told.
    """

    def __init__(self, folder: Path, holder: Holder | None) -> None:
        self.folder = folder
        self.holder = holder
        super().__init__(f"another run writes to {folder}: {self._who()}.")

    def _who(self) -> str:
        holder = self.holder
        if holder is None:
            return "its process cannot be told"
        if holder.pid == os.getpid() and holder.is_here:
            return f"one of this very process ({holder.pid}), since {holder.since}"
        command = f"({holder.command})" if len(holder.command) <= 400 else f"({holder.command[:400]}…)"
        if not holder.is_alive:
            return f"process {holder.pid} on this machine is gone, but one that it started still runs {command}"
        where = "on this machine" if holder.is_here else f"on {holder.host}"
        return f"process {holder.pid} {where}, since {holder.since} {command}"

    @property
    def fix(self) -> str:
        """What to do about it."""
        other = f"give this run a folder of its own, such as output_dir={self.folder}-2"
        holder = self.holder
        if holder is None or (holder.is_here and not holder.is_alive):
            return f"end that process (`fuser -v {self.folder / LOCK_FILE}` names it), or {other}."
        if not holder.is_here:
            return (
                f"wait for it or end it there, or {other}. If {holder.host} was lost, its lock goes a few minutes "
                f"later, when the file server notices; where it stays, remove {self.folder / LOCK_FILE}."
            )
        end = "" if holder.pid == os.getpid() else f" or end it (`kill {holder.pid}` lets it save its last step)"
        return f"wait for it{end}, or {other}."


@contextmanager
def hold(folder: Path) -> Iterator[bool]:
    """Keep every other run out of ``folder`` for a while, runs of this process included.

    The folder is made, and removed again if nothing was written there. The lock needs no cleaning up after a process
    that was killed. On a network file system it holds between machines where the server has locks.

    Args:
        folder: The folder, which holds the lock as a file ``run.lock`` meanwhile.

    Yields:
        Whether the file system has locks. Where it has none, a run on this machine is still recognised, and one on
        another as long as its lock file is there.

    Raises:
        FolderInUseError: Another run has it.
        OSError: The folder cannot be made or written to.
    """
    path = folder / LOCK_FILE
    for tries in reversed(range(_TRIES)):
        made = _missing(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, has_locks = _acquire(path)
            break
        except BaseException as error:
            _remove_if_empty(made)
            # A run that ends removes the folder that it made if nothing is in it: perhaps just now.
            if not isinstance(error, FileNotFoundError | FileExistsError) or not tries:
                raise
    _inherited().add(descriptor)
    try:
        yield has_locks
    finally:
        # Removed before it is let go: nobody can have taken it in between.
        path.unlink(missing_ok=True)
        _inherited().discard(descriptor)
        os.close(descriptor)
        _remove_if_empty(made)


def is_held(folder: Path) -> bool:
    """Whether a run has ``folder`` now. Hardly ever gets in the way of one that is about to take it."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        holder = _read(descriptor)
        if holder is None or not (holder.is_here and holder.is_alive):
            return holder is not None and not holder.is_here
        # Its number may be another process's by now; the lock is not.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return True
    finally:
        os.close(descriptor)


def require_writable(folder: Path) -> None:
    """Make sure that ``folder`` can be made and written to. Nothing is left there.

    Raises:
        OSError: It cannot.
    """
    made = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    finally:
        _remove_if_empty(made)


def _acquire(path: Path) -> tuple[int, bool]:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            has_locks = _lock(descriptor, path)
            if not _is_the_file(descriptor, path):
                # Whoever had it removed it just now: what was locked is a file without a name.
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(Holder.this_process())).encode(), 0)
            return descriptor, has_locks
        except BaseException:
            os.close(descriptor)
            raise


def _lock(descriptor: int, path: Path) -> bool:
    """Lock the file. Returns whether it could be: without locks, what is written in it must do."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        raise FolderInUseError(path.parent, _current_holder(descriptor)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    holder = _read(descriptor)
    if holder is not None and holder.is_alive:
        raise FolderInUseError(path.parent, holder)
    return False


def _current_holder(descriptor: int) -> Holder | None:
    """Read who has the file; what is still written there of a dead process is perhaps about to be replaced."""
    for _ in range(10):
        holder = _read(descriptor)
        if holder is not None and holder.is_alive:
            break
        time.sleep(0.05)
    return holder


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 1 << 20, 0)))
    except (ValueError, TypeError):
        return None


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _missing(folder: Path) -> list[Path]:
    """Return what has to be made for ``folder`` to be there, innermost first."""
    return list(itertools.takewhile(lambda place: not os.path.lexists(place), (folder, *folder.parents)))


def _remove_if_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@functools.cache
def _inherited() -> set[int]:
    """Return the descriptors that forked processes close at once: a child that outlives the run must not hold on."""
    descriptors: set[int] = set()

    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors.clear()

    os.register_at_fork(after_in_child=close)
    return descriptors
