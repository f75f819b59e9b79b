"""Templates, and the addresses that pages lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from roll.viewer.episodes import Row
from roll.viewer.frames import Tile
from roll.viewer.lanes import phases
from roll.viewer.parts import TokenView, visible


class Addresses:
    """Where the pages of the server are.

    Attributes:
        in_file: Whether the pages are in one file.
        tokens_at_most: Tokens of a turn's prompt, and of its response, that are shown; ``None`` for as many as usual.
    """

    in_file = False
    tokens_at_most: int | None = None

    def holds(self, what: object) -> bool:
        """Whether an episode can be led to."""
        return True

    def views(self) -> Iterable[tuple[str, str]]:
        """Return the views of the run: name and address."""
        return (("Overview", "/"), ("Episodes", "/episodes"))

    def overview(self) -> str:
        """Return where the overview is."""
        return "/"

    def table(self, query: str) -> str:
        """Return where the table is."""
        return f"/episodes{query}"

    def episode(self, row: Row, query: str, tokens: bool = False) -> str:
        """Return where an episode is, or its tokens."""
        return f"/{'tokens' if tokens else 'episode'}/{_place(row)}{query}"

    def tokens(self, row: Row, query: str, whole: bool = False) -> str:
        """Return where its tokens are."""
        return self._with_all(self.episode(row, query, tokens=True), whole)

    def whole(self, row: Row, query: str) -> str:
        """Return where an episode is shown with all of its text."""
        return self._with_all(self.episode(row, query), True)

    def group(self, row: Row) -> str:
        """Return where its group is."""
        return f"/group/{row.phase}/{row.step}/{quote(row.group_id, safe='')}"

    def note(self, row: Row, query: str) -> str:
        """Return where a note on an episode is sent to; nothing where none can be kept."""
        return f"/note/{_place(row)}{query}"

    def _with_all(self, address: str, whole: bool) -> str:
        return f"{address}{'&' if '?' in address else '?'}all=1" if whole else address


def _place(row: Row) -> str:
    return f"{row.phase}/{row.step}/{row.episode}/{quote(row.group_id, safe='')}"


@lru_cache
def templates() -> jinja2.Environment:
    """Return the templates. Everything is escaped, whatever the file is called."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("roll.viewer", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": _visible, "pairs": _pairs, "duration": duration, "phases": phases}
    environment.filters |= {"board": board, "spans": spans}
    return environment


def static_text(name: str) -> str:
    """Return the style sheet or the script."""
    return (files("roll.viewer") / "static" / name).read_text(encoding="utf-8")


def write_whole(path: Path, content: str) -> None:
    """Write a file whole or not at all; halves of characters, which no encoding takes, are replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode("utf-8", "replace"))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def duration(seconds: float) -> str:
    """Return a time from microseconds to hours, with two digits that say something."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if seconds <= 0 else "< 1 µs"


def board(tiles: Sequence[Sequence[Tile]]) -> Markup:
    """Return the picture of a board. Here and not in a template, which takes ten times as long for each tile."""
    rows, columns = len(tiles), len(tiles[0])
    drawn = "\n".join("".join(_tile(tile, 10 * x, 10 * y) for x, tile in enumerate(row)) for y, row in enumerate(tiles))
    return Markup(
        f'<svg class="board" viewBox="0 0 {columns * 10} {rows * 10}" role="img" '
        f'aria-label="board of {rows} rows and {columns} columns">\n{drawn}\n</svg>'
    )


def _tile(tile: Tile, x: int, y: int) -> str:
    glyph = f'<text x="{x + 4.8}" y="{y + 7}">{escape(visible(tile.glyph))}</text>' if tile.kind == "thing" else ""
    place = f'x="{x}" y="{y}" width="9.6" height="9.6" rx="1.2"'
    return f'<g class="{tile.kind} h{tile.hue // 18}"><rect {place}/>{glyph}</g>'


def spans(tokens: Iterable[TokenView]) -> Markup:
    """Return tokens as they are shown, for the same reason."""
    return Markup("".join(map(_span, tokens)))


@lru_cache(maxsize=10_000)
def _span(token: TokenView) -> str:
    look = f"{token.kind} {token.shades}".rstrip()
    return f'<span class="t {look}" title="{escape(token.hint)}">{escape(visible(token.text))}</span>'


def _pairs(values: Iterable[str]) -> list[tuple[str, str]]:
    return [(value, value) for value in values]


def _visible(text: object) -> str | Markup:
    return text if isinstance(text, Markup) else visible(text)
