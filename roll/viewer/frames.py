"""What a frame is drawn as: an image, a board of tiles, or plain text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")
_MAX_SIDE = 48
_FLOOR = frozenset(" _.·-")
_WALL = frozenset("#█■▓")


@dataclass(frozen=True, slots=True)
class Tile:
    """One cell of a board.

    Attributes:
        glyph: The character.
        kind: ``"floor"``, ``"wall"`` or ``"thing"``.
        hue: Degrees on the colour circle; the same character has the same hue on every page.
    """

    glyph: str
    kind: str
    hue: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of an episode: exactly one of the three is set.

    Attributes:
        image: A ``data:image/…;base64,…`` URI.
        tiles: Rows of a board, all of one length.
        text: Anything else.
    """

    image: str | None = None
    tiles: tuple[tuple[Tile, ...], ...] = ()
    text: str | None = None


def make_frame(content: str | None) -> Frame:
    """Return how ``content`` is drawn. ``None`` is the empty text.

    A board is text of at least two lines of equal length, at most 48 × 48, without words. Where every second column is
    blank (``"# # #"``), those are separators and left out. Any URI that is not a base64 image is shown as text.
    """
    if not content:
        return Frame(text="")
    if _IMAGE.match(content):
        return Frame(image=re.sub(r"\s", "", content))
    rows = _board(content)
    if rows is None:
        return Frame(text=content)
    return Frame(tiles=tuple(tuple(_tile(glyph) for glyph in row) for row in rows))


def _board(content: str) -> list[list[str]] | None:
    """Return the cells of a board, ``None`` where the text is not one."""
    lines = content.strip("\r\n").splitlines()
    if any("\t" in line for line in lines):
        rows = [line.strip("\t").split("\t") for line in lines]
        rows = [[cell.strip() or " " for cell in row] for row in rows]
        if any(len(cell) > 1 for row in rows for cell in row):
            return None
    else:
        width = max(map(len, lines), default=0)
        # Trailing blanks are often stripped on the way; a board's floor may be blank.
        rows = [list(line.ljust(width)) for line in lines]
        if re.search(r"\w{3,}", content) and re.search(r"[a-z]{3,}", content):
            return None
        if width > 2 and all(cell == " " for row in rows for cell in row[1::2]):
            rows = [row[::2] for row in rows]
    if len(rows) < 2 or len(rows) > _MAX_SIDE or len(rows[0]) > _MAX_SIDE or len({len(row) for row in rows}) != 1:
        return None
    return rows


def _tile(glyph: str) -> Tile:
    """Return the tile of a character."""
    kind = "floor" if glyph in _FLOOR else "wall" if glyph in _WALL else "thing"
    # 18.3° per code point keeps the glyphs that usual boards use together (P O X S, @ $ *, A to H) well apart.
    return Tile(glyph, kind, int(ord(glyph[0]) * 18.3) % 360)
