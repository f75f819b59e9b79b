"""A picture in a prompt: what it shows, and which tokens stand for it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_URI = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,([A-Za-z0-9+/=]*)")
_KINDS = ((b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture among tokens. One placeholder token stands for each cell of a grid that a vision model lays over it.

    Attributes:
        start: Index of the first of its placeholder tokens, which follow one another row by row.
        rows: Rows of the grid.
        columns: Columns of the grid.
        data: The encoded picture (PNG, or whatever else Pillow opens).
    """

    start: int
    rows: int
    columns: int
    data: bytes

    @property
    def tokens(self) -> int:
        """How many placeholder tokens stand for it."""
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        """Index after the last of them."""
        return self.start + self.tokens

    def moved(self, tokens: int) -> Picture:
        """Return the same picture ``tokens`` further on."""
        return replace(self, start=self.start + tokens)

    @property
    def mark(self) -> int:
        """A negative number, the same for equal pictures and grids and for no others, in any process."""
        shown = hashlib.blake2b(self.data, digest_size=8, salt=f"{self.rows}x{self.columns}".encode()[:16])
        return -1 - (int.from_bytes(shown.digest(), "big") >> 2)


def picture_frame(data: bytes) -> str:
    """Return an encoded picture as what a person is shown: a ``data:image/…;base64,…`` URI."""
    kind = next((kind for beginning, kind in _KINDS if data.startswith(beginning)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def frame_picture(frame: str | None) -> bytes | None:
    """Return what :func:`picture_frame` was given; ``None`` where a frame is text, or there is none."""
    written = None if frame is None else _URI.fullmatch(frame)
    if written is None:
        return None
    try:
        return base64.b64decode(written[1], validate=True)
    except binascii.Error:
        return None


def marked(token_ids: Sequence[int], pictures: Iterable[Picture]) -> list[int]:
    """Return tokens in which placeholders are the marks of their pictures.

    Placeholders are alike whatever they stand for; what is returned is equal only where the same is shown.
    """
    tokens = list(token_ids)
    for picture in pictures:
        tokens[picture.start : picture.stop] = [picture.mark] * picture.tokens
    return tokens


def check_places(where: str, token_ids: Sequence[int], pictures: Sequence[Picture], placeholder: int) -> None:
    """Refuse pictures whose places are not those of placeholders.

    Args:
        where: What has them, for the message.
        token_ids: The tokens.
        pictures: In the order of their places.
        placeholder: The token that stands for a cell of a picture.

    Raises:
        ValueError: Pictures overlap, lie outside the tokens, or other tokens are in the place of one.
    """
    last = 0
    for number, picture in enumerate(pictures):
        if not last <= picture.start <= picture.stop <= len(token_ids) or picture.tokens < 1:
            raise ValueError(
                f"{where}: picture {number} is at tokens {picture.start} to {picture.stop}, which must be at least one "
                f"and lie between {last} and {len(token_ids)}; name pictures in the order of their places"
            )
        last = picture.stop
        if any(token != placeholder for token in token_ids[picture.start : picture.stop]):
            raise ValueError(
                f"{where}: picture {number} takes {picture.tokens} tokens from {picture.start} on, and not all of them "
                f"are the placeholder {placeholder}; a renderer writes one for each cell of a picture"
            )
