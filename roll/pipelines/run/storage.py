"""Why something could not be written, in a sentence: a full disk, a quota, a limit, a folder that is read-only."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roll.config import RunError
from roll.config.errors import causes

_REFUSALS = {
    errno.EDQUOT: "the quota there is used up",
    errno.EROFS: "the file system there is read-only",
    errno.EIO: "the device there reports an input/output error",
    errno.ESTALE: "the network file system there is gone",
    errno.ENOSPC: "no space is left there",
    errno.EFBIG: "a file would be larger than is allowed there",
}
_ALWAYS_STORAGE = tuple(_REFUSALS)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_PROBE_BYTES = 1 << 20


class StorageError(RuntimeError):
    """Something could not be written; the message is a sentence that says why and what to do."""


def require_room(folder: Path, needed: int) -> None:
    """Make sure that ``needed`` bytes fit on the file system of ``folder``.

    Raises:
        StorageError: They do not.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"The next checkpoint needs {_size(needed)} as the last one did, and {_size(free)} are free in {folder}. "
            "Free some space, or name another folder with checkpoint_config.output_dir."
        )


def refusal(error: BaseException, folder: Path, inside: Sequence[Path] = ()) -> StorageError | None:
    """Return why writing failed, ``None`` if the file system is not the reason.

    Args:
        error: What was raised. Libraries that write in C++ or Rust hide the reason, which is then looked for.
        folder: Where was written to, as far as is known.
        inside: Folders of the run: whatever the system refuses there is about storage.
    """
    for cause in causes(error):
        number, file = _number(cause), getattr(cause, "filename", None)
        path = Path(os.fsdecode(file)) if isinstance(file, str | bytes) else None
        if number in _ALWAYS_STORAGE:
            return _said(number, path or folder)
        if number is not None and path is not None and any(path.is_relative_to(place) for place in inside):
            return _said(number, path)
    return None


def hidden_refusal(folder: Path, named: Path) -> StorageError | None:
    """Return why ``folder`` takes nothing more, found by trying; ``None`` if it does. The message names ``named``."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if limit != resource.RLIM_INFINITY and any(size >= limit for size in sizes):
        return _said(errno.EFBIG, named)
    probe = folder / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return _said(error.errno or errno.EIO, named)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


@contextmanager
def refusals_end_the_run(folders: Sequence[Path], ending: Callable[[], str]) -> Iterator[None]:
    """Turn what the file system refuses inside this context into the end of the run, told in a sentence.

    Args:
        folders: The folders of the run, the first of them first in the message.
        ending: What is saved, and how to go on.

    Raises:
        RunError: Something could not be written.
    """
    try:
        yield
    except (OSError, StorageError) as error:
        said = error if isinstance(error, StorageError) else refusal(error, folders[0], folders)
        if said is None:
            raise
        raise RunError(f"{said}\n{ending()}".rstrip()) from error


def _said(number: int, path: Path) -> StorageError:
    place = path if path.exists() else path.parent
    if number == errno.ENOSPC:
        with suppress(OSError):
            free = shutil.disk_usage(place).free
            # Small files that are many can use up a file system that has room left.
            what = "no files can be added, though there is room" if free > _PROBE_BYTES else "no space is left there"
            return StorageError(f"{path} cannot be written: {what} ({_size(free)} free). Free some, then go on.")
    if number == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = "than the file system takes" if limit == resource.RLIM_INFINITY else f"than {_size(limit)}"
        return StorageError(
            f"{path} cannot be written: a file would be larger {most}. Raise the limit (`ulimit -f unlimited`)."
        )
    return StorageError(f"{path} cannot be written: {reason_of(number)}.")


def reason_of(number: int) -> str:
    """Return what an error number of the system means for somebody who wants to write, as part of a sentence."""
    in_the_way = {errno.EEXIST: "a file is in its place", errno.ENOTDIR: "a file is in the place of a folder"}
    return {**_REFUSALS, **in_the_way}.get(number, os.strerror(number).lower())


def _number(error: BaseException) -> int | None:
    """Return the system's number of an error; what is written in Rust has it in the message only."""
    if isinstance(error, OSError):
        return error.errno
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
