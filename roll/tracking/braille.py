"""Curves drawn in braille characters: 2 dots per column, 4 per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Unicode bit of each dot: column 0 and 1, each from the top."""


def braille_curve(
    values: Sequence[float], width: int, height: int, low: float, high: float, slots: int | None = None
) -> list[str]:
    """Draw ``values`` as a connected line.

    Args:
        values: Oldest first; non-finite ones leave a gap.
        width: Characters.
        height: Rows.
        low: Value at the lower edge.
        high: Value at the upper edge.
        slots: How many values fill the width; fewer leave the right side empty. Defaults to ``len(values)``.

    Returns:
        ``height`` strings of ``width`` braille characters, top row first.
    """
    cells = [[0] * width for _ in range(height)]
    rows = height * 4
    previous: tuple[int, float] | None = None
    for index, value in enumerate(values):
        if not math.isfinite(value):
            previous = None
            continue
        column = dot_column(index, width, slots or len(values))
        level = _level(value, low, high, rows)
        start, from_level = previous or (column, level)
        last = round(from_level)
        for x in range(start, column + 1):
            share = 1.0 if column == start else (x - start) / (column - start)
            y = round(from_level + (level - from_level) * share)
            # Fill the rise between neighbouring columns, so that the line has no holes.
            for dot in range(min(last, y), max(last, y) + 1):
                cells[height - 1 - dot // 4][x // 2] |= _DOTS[x % 2][3 - dot % 4]
            last = y
        previous = (column, level)
    return ["".join(chr(_BLANK + bits) for bits in row) for row in cells]


def dot_column(index: int, width: int, slots: int) -> int:
    """Return the dot column, ``0 … 2 * width - 1``, of value ``index`` of ``slots``."""
    return 0 if slots <= 1 else round(min(index, slots - 1) / (slots - 1) * (2 * width - 1))


def text_row(value: float, height: int, low: float, high: float) -> int:
    """Return the text row, 0 at the top, that ``value`` falls in."""
    return height - 1 - round(_level(value, low, high, height * 4)) // 4


def _level(value: float, low: float, high: float, rows: int) -> float:
    """Return the dot row of ``value`` counted from the bottom, ``0 … rows - 1``."""
    share = 0.5 if high <= low else (value - low) / (high - low)
    return min(1.0, max(0.0, share)) * (rows - 1)
