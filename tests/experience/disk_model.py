"""What a disk is sure to have, and what it may have, when the power of a machine is cut.

What a program wrote, renamed, linked and removed is on the disk for sure once it has synced the file, or the folder
with the name. Of the rest a disk has whatever it got to: of each name the old state or the new one, of each file old
and new blocks beside each other. This follows the syncs of a process, those of libraries in C too, by a library in
front of that of the system, which takes the place of ``fsync`` and ``fdatasync``.

It is harsher than a file system with a journal, which keeps the order of renames. It leaves out what is not seen from
above: blocks that are half old and half new, and disks that say that they have what they have not. What is synced
with other calls (``O_SYNC``, ``sync_file_range``, ``msync``) would count as not synced.
"""

from __future__ import annotations

import ctypes
import os
import random
import stat
import subprocess
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = 4096
_IN_FRONT = """
static void (*follow)(int);
void follow_syncs(void (*function)(int)) { follow = function; }
int fsync(int file) { if (follow) follow(file); return 0; }
int fdatasync(int file) { return fsync(file); }
"""

Folders = dict[int, dict[str, int]]
Files = dict[int, bytes]


def library(folder: Path) -> Path:
    """Return a library for ``LD_PRELOAD``."""
    source = folder / "in_front.c"
    source.write_text(_IN_FRONT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source], check=True)
    return source.with_suffix(".so")


@dataclass(frozen=True)
class Moment:
    """A moment at which the power may be cut. Files and folders are named by their inodes.

    Attributes:
        root: The folder that all others are in.
        said: What the program had said until then.
        folders, files: What programs see.
        synced_folders, synced_files: What is on the disk for sure.
    """

    root: int
    said: list[Any]
    folders: Folders
    files: Files
    synced_folders: Folders
    synced_files: Files

    def restore(self, target: Path, draw: random.Random | None) -> None:
        """Make a folder of what a disk has afterwards: with nothing but what was synced, or as is drawn."""
        contents: Files = {}
        self._restore(self.root, target, draw, contents)

    def _restore(self, inode: int, target: Path, draw: random.Random | None, contents: Files) -> None:
        if inode in self.folders or inode in self.synced_folders:
            target.mkdir()
            old, new = self.synced_folders.get(inode, {}), self.folders.get(inode, {})
            for name in sorted({*old, *new}):
                chosen = (old if draw is None else draw.choice((old, new))).get(name)
                if chosen is not None:
                    self._restore(chosen, target / name, draw, contents)
            return
        if inode not in contents:
            old_content = self.synced_files.get(inode, b"")
            contents[inode] = _either(old_content, self.files.get(inode, old_content), draw)
        target.write_bytes(contents[inode])


def _either(old: bytes, new: bytes, draw: random.Random | None) -> bytes:
    """Return a file that has old blocks, new blocks, or some of both."""
    if draw is None or old == new:
        return old
    whole = draw.choice((old, new, None))
    if whole is not None:
        return whole
    length = len(draw.choice((old, new)))
    blocks = [
        draw.choice((old, new))[at : at + _BLOCK].ljust(_BLOCK, b"\0")  # what was never written is empty
        for at in range(0, length, _BLOCK)
    ]
    return b"".join(blocks)[:length]


class Disk:
    """Follows what a process syncs below a folder; each sync is a moment at which the power may be cut, before it.

    Args:
        root: The folder. It is empty, and on the disk.
        in_front: The library that was loaded first.
    """

    def __init__(self, root: Path, in_front: Path) -> None:
        self._root = root.resolve()
        self._synced_folders: Folders = {os.stat(root).st_ino: {}}
        self._synced_files: Files = {}
        self._known: dict[bytes, bytes] = {}
        self.said: list[Any] = []
        self.moments: list[Moment] = []
        # Kept: nobody else refers to it.
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._follow)
        ctypes.CDLL(str(in_front)).follow_syncs(self._function)

    def now(self) -> None:
        """Take note of this moment."""
        folders: Folders = {}
        files: Files = {}
        for path in (self._root, *self._root.rglob("*")):
            if path.is_dir():
                folders[path.stat().st_ino] = _names(path)
            else:
                files[path.stat().st_ino] = self._content(path)
        self.moments.append(
            Moment(
                self._root.stat().st_ino, [*self.said], folders, files, {**self._synced_folders}, {**self._synced_files}
            )
        )

    def _follow(self, descriptor: int) -> None:
        try:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path != self._root and self._root not in path.parents:
                return
            self.now()
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self._synced_folders[found.st_ino] = _names(path)
                for each in path.iterdir():
                    os.open(each, os.O_PATH)  # and never closed: no other file gets its inode
            else:
                self._synced_files[found.st_ino] = self._content(Path(f"/proc/self/fd/{descriptor}"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # C has no exceptions

    def _content(self, path: Path) -> bytes:
        content = path.read_bytes()
        return self._known.setdefault(content, content)


def _names(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_ino for each in folder.iterdir()}
