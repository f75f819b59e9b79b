"""By what a file is known to be the same as before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file that was written again differs in: modification time in nanoseconds, size, inode."""

    time: int
    size: int
    inode: int

    @classmethod
    def of(cls, path: str | Path) -> FileStamp:
        """Return that of a file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        seen = Path(path).stat()
        return cls(seen.st_mtime_ns, seen.st_size, seen.st_ino)
