"""What is written, on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way(folder: Path) -> None:
    """Wait until the names in a folder, and those that lead to it, are on the disk.

    Whoever made a folder above it may have been killed before they were.
    """
    for each in (folder, *folder.absolute().parents):
        try:
            sync(each)
        except OSError:
            if each == folder:
                raise
            return  # what we may not look into, we have not made
        if os.path.ismount(each):
            return


def replace_text(path: Path, text: str) -> None:
    """Write a small file, whole or not at all: who reads it meanwhile sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
