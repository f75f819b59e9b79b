"""Checksums of every file of a checkpoint, so that a damaged one is recognised before it is loaded.

The list is in the format of ``xxh128sum``, so ``xxh128sum -c checksums.xxh128`` inside of a checkpoint checks it too.
XXH3 keeps up with the memory, which SHA-256 does not: against accidents, not against forgery.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

CHECKSUMS = "checksums.xxh128"

_CHUNK_BYTES = 1 << 22
_READERS = 8
_LINE = re.compile(r"([0-9a-f]{32})  (.+)")


def write_checksums(folder: Path, last: str) -> None:
    """Write the checksums of all files of ``folder``.

    Args:
        folder: A checkpoint.
        last: The file listed last: a list without it is not whole.
    """
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if name not in (last, CHECKSUMS)] + [last]
    lines = [f"{checksum}  {name}\n" for name, checksum in zip(names, _checksums(folder, names), strict=True)]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def damages(folder: Path, last: str) -> list[str] | None:
    """Return what is wrong with the files of ``folder``, one part of a sentence each.

    Args:
        folder: A checkpoint.
        last: What ``write_checksums`` was given.

    Returns:
        Nothing if every file is as it was written; ``None`` if there are no checksums.
    """
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    # Not `splitlines`, which takes a line feed with a changed bit, a vertical tab, for a line feed.
    lines = [_LINE.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
    expected = {line[2]: line[1] for line in lines if line is not None}
    if None in lines or next(reversed(expected), None) != last:
        return [f"{CHECKSUMS} is not as it was written"]
    absent = [name for name in expected if not (folder / name).is_file()]
    there = [name for name in expected if name not in absent]
    try:
        found = zip(there, _checksums(folder, there), strict=True)
    except OSError as error:
        return [f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"]
    changed = [name for name, checksum in found if checksum != expected[name]]
    return [f"{name} is missing" for name in absent] + [f"{name} is not as it was written" for name in changed]


def visible_damages(folder: Path) -> list[str]:
    """Return what can be seen to be wrong with files that have no checksums: cut short, or not what they are named."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if path.suffix == ".pt" and not zipfile.is_zipfile(path):
            found.append(f"{name} is cut short")
        elif path.suffix == ".json" and not _is_json(path):
            found.append(f"{name} is no JSON")
        elif path.suffix == ".safetensors" and not _is_safetensors(path):
            found.append(f"{name} is cut short")
    return found


def _checksums(folder: Path, names: list[str]) -> list[str]:
    with ThreadPoolExecutor(_READERS, thread_name_prefix="checksum") as pool:
        return list(pool.map(lambda name: _checksum(folder / name), names))


def _checksum(path: Path) -> str:
    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _is_safetensors(path: Path) -> bool:
    """Whether the tensors that the header lists fill the file."""
    with path.open("rb") as file:
        head = int.from_bytes(file.read(8), "little")
        try:
            tensors = json.loads(file.read(min(head, os.path.getsize(path))))
            ends = [value["data_offsets"][1] for key, value in tensors.items() if key != "__metadata__"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
    return os.path.getsize(path) == 8 + head + max(ends, default=0)
