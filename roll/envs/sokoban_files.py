"""Files of Sokoban levels as people publish them: Boxoban's text, and collections in the same symbols.

Source: https://github.com/google-deepmind/boxoban-levels (README). A line ``; 0`` numbers the level below it, a row has
a character per cell. Boxes and players on targets (``*``, ``+``), ``-`` and ``_`` for floor, rows of different lengths
and blank lines between levels are those of other collections, http://sokobano.de/wiki/index.php?title=Level_format.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from roll.envs.errors import EnvConfigError
from roll.envs.lookups import LONGEST_SIDE
from roll.envs.sokoban_levels import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, Level

_CELLS: Final = {
    "#": WALL,
    " ": FLOOR,
    "-": FLOOR,
    "_": FLOOR,
    ".": TARGET,
    "$": BOX,
    "*": BOX_ON_TARGET,
    "@": PLAYER,
    "+": PLAYER_ON_TARGET,
}
_LEGEND: Final = "# wall, space floor, . target, $ box, * box on target, @ player, + player on target"


def levels_of(name: str) -> tuple[Level, ...]:
    """Return the levels of a file, in its order.

    A level is a block of rows; lines that begin with ``;`` and blank lines end it. What surrounds a room is wall.

    Args:
        name: The file. It is read again only after it changed.

    Raises:
        EnvConfigError: The file cannot be read, has no level, or one of them cannot be played; the message says in
            which line.
    """
    from roll.config.shipped import shipped_data

    path = shipped_data(Path(name).expanduser())
    try:
        return _read(name, path, path.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvConfigError(f"levels: {name} cannot be read: {error}") from error


def largest_room(levels: Sequence[Level]) -> tuple[int, int] | None:
    """Return rows and columns that every one of the levels fits in; ``None`` without levels."""
    if not levels:
        return None
    return max(level.height for level in levels), max(level.width for level in levels)


@functools.lru_cache(maxsize=16)
def _read(name: str, path: Path, changed: int) -> tuple[Level, ...]:
    """Return the levels of a file as it was at a time, in nanoseconds."""
    levels = tuple(_level(rows, first, name) for first, rows in _blocks(path.read_text("utf-8")))
    if not levels:
        raise EnvConfigError(f"levels: there are none in {name}; a level is rows of {_LEGEND}")
    return levels


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of each level with the number of the first line, from 1."""
    rows: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip() and not line.startswith(";"):
            rows.append(line.rstrip())
        elif rows:
            yield number - len(rows), rows
            rows = []


def _level(rows: list[str], first: int, name: str) -> Level:
    """Return the level of a block of lines."""
    width = max(map(len, rows))
    if max(width, len(rows)) > LONGEST_SIDE:
        size = f"{len(rows)} rows and {width} columns"
        raise EnvConfigError(f"levels: {name}, line {first}: {size} are more than {LONGEST_SIDE}")
    codes = [
        [_code(cell, name, number, column) for column, cell in enumerate(row.ljust(width), 1)]
        for number, row in enumerate(rows, first)
    ]
    opened = _wall_outside(codes)
    if opened is not None:
        row, column = opened
        raise EnvConfigError(
            f"levels: {name}, line {first + row}, column {column + 1}: the room is open here; close it by walls (#)"
        )
    try:
        level = Level.from_codes(codes)
    except EnvConfigError as error:
        raise EnvConfigError(f"levels: {name}, line {first}: {error}") from error
    if level.solved:
        raise EnvConfigError(f"levels: {name}, line {first}: every box is on a target already; leave this level out")
    return level


def _code(cell: str, name: str, line: int, column: int) -> int:
    if cell not in _CELLS:
        raise EnvConfigError(
            f"levels: {name}, line {line}, column {column}: {cell!r} is no cell. Use {_LEGEND}; "
            "begin a line of words with ;"
        )
    return _CELLS[cell]


def _wall_outside(codes: list[list[int]]) -> tuple[int, int] | None:
    """Make floor that is connected with the border wall; return a place (row, column) where the room is open."""
    height, width = len(codes), len(codes[0])
    reached = [(row, column) for row in range(height) for column in range(width) if row in (0, height - 1)]
    reached += [(row, column) for row in range(height) for column in (0, width - 1)]
    while reached:
        row, column = reached.pop()
        if not (0 <= row < height and 0 <= column < width) or codes[row][column] == WALL:
            continue
        if codes[row][column] != FLOOR:
            return row, column
        codes[row][column] = WALL
        reached += [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return None
