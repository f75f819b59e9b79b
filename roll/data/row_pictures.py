"""The pictures of a row, and where its prompt shows them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from roll.config.errors import FixableError
from roll.rendering import PICTURE, without_pictures

PLACE: Final = "<image>"
"""What data sets write into a prompt where a picture is shown."""

_FORMS: Final = "write a path, base64, a data URI, bytes, {bytes: …}, {path: …}, or a list of these."


def pictures_of(value: Any, column: str) -> tuple[bytes, ...]:
    """Return the encoded pictures of a cell: one, several, or none where it is empty.

    Args:
        value: A path, base64, a ``data:image/…;base64,…`` URI, bytes, a mapping with ``bytes`` or ``path``, or a list.
        column: What messages call it.

    Raises:
        FixableError: It is something else, or a file is not there.
    """
    if value is None:
        return ()
    cells = value if isinstance(value, list | tuple) else [value]
    return tuple(_picture(cell, f"picture {number} of {column!r}") for number, cell in enumerate(cells, start=1))


def with_places(messages: Sequence[Mapping[str, str]], pictures: int) -> list[dict[str, str]]:
    """Return a conversation in which the user shows pictures.

    They are shown where the user's messages say ``<image>``, in order; where none says so, at the beginning of the
    last one.

    Raises:
        FixableError: The user's messages have places for more or fewer.
    """
    said = [
        {**message, "content": without_pictures(message["content"])} if message["role"] == "user" else dict(message)
        for message in messages
    ]
    users = [message for message in said if message["role"] == "user"]
    places = sum(message["content"].count(PLACE) for message in users)
    if not places and users:
        users[-1]["content"] = PICTURE * pictures + users[-1]["content"]
    elif places != pictures:
        raise FixableError(
            f"the prompt says {PLACE} {places} times, and the row has {pictures} pictures.",
            f"write {PLACE} once for each picture, or nowhere: they are then shown before the text.",
        )
    for message in users:
        message["content"] = message["content"].replace(PLACE, PICTURE)
    return said


def _picture(cell: Any, what: str) -> bytes:
    if isinstance(cell, Mapping):
        inside = next((cell[key] for key in ("bytes", "path", "image") if cell.get(key) is not None), None)
        if inside is None or isinstance(inside, Mapping):
            raise FixableError(f"{what} has neither bytes nor a path.", _FORMS)
        cell = inside
    if isinstance(cell, bytes | bytearray):
        return bytes(cell)
    if not isinstance(cell, str):
        raise FixableError(f"{what} is {type(cell).__name__}.", _FORMS)
    written = cell.partition("base64,")[2] if cell.startswith("data:") else None
    if written is None:
        path = Path(cell.removeprefix("file://")).expanduser()
        # No path is as long as a picture, and asking for one that is fails.
        if len(cell) < 1024 and path.is_file():
            return path.read_bytes()
    try:
        found = base64.b64decode(cell if written is None else written, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    # A path is often base64 too; eight bytes begin every picture.
    if len(found) < 8 or (written is None and len(cell) < 64):
        shown = cell if len(cell) <= 80 else f"{cell[:77]}..."
        raise FixableError(
            f"{what} is {shown!r}, which is no file here and no base64.",
            f"{_FORMS} Paths are relative to the folder in which the run starts.",
        )
    return found
