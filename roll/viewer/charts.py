"""Curves and histograms as drawings: numbers in, coordinates out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 300
HEIGHT: Final = 120
"""Size of the area that a chart draws in."""

BINS: Final = 24
"""Most bars of a histogram."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: its name, its points as SVG takes them, the last value, and each point with what it says."""

    name: str
    points: str
    dots: tuple[tuple[float, float, str], ...]
    last: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share their axes; ``low`` and ``high`` are the values at the edges, ``first`` and ``last`` steps."""

    title: str
    lines: tuple[Line, ...]
    low: float
    high: float
    first: int
    last: int
    share: bool = False

    def form(self, value: float) -> str:
        """Return a value as it is written beside the chart."""
        return f"{100 * value:.1f}%" if self.share else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram: where it stands, how high, and what it says."""

    x: float
    width: float
    height: float
    hint: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values occur; ``low`` and ``high`` are the edges, ``most`` is the number of the highest bar."""

    title: str
    bars: tuple[Bar, ...]
    low: float
    high: float
    number: int
    most: int


def chart(title: str, curves: Mapping[str, Sequence[tuple[Any, ...]]], *, share: bool = False) -> Chart | None:
    """Return curves drawn over steps; ``None`` where there is no number.

    Args:
        title: What they show.
        curves: Name → ``(step, value)`` in the order of steps. What is missing or not finite leaves no point.
        share: Whether values are between 0 and 1 and written in per cent.
    """
    known = {
        name: [(step, value) for step, value in points if value is not None and math.isfinite(value)]
        for name, points in curves.items()
    }
    known = {name: points for name, points in known.items() if points}
    if not known:
        return None
    steps = [step for points in known.values() for step, _ in points]
    values = [value for points in known.values() for _, value in points]
    low, high = (0.0, 1.0) if share else (min(values), max(values))
    if low == high:
        low, high = low - 0.5, high + 0.5
    first, last = min(steps), max(steps)
    lines = []
    for name, points in known.items():
        dots = tuple(
            (
                round(WIDTH / 2 if first == last else WIDTH * (step - first) / (last - first), 1),
                round(HEIGHT * (high - value) / (high - low), 1),
                f"{name}, step {step}: {f'{100 * value:.1f}%' if share else f'{value:.4g}'}",
            )
            for step, value in points
        )
        lines.append(Line(name, " ".join(f"{x},{y}" for x, y, _ in dots), dots, points[-1][1]))
    return Chart(title, tuple(lines), low, high, first, last, share)


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal intervals that cover values from ``low`` to ``high``.

    Attributes:
        low: Where the first begins.
        size: How wide each is; of whole numbers, how many of them are in it.
        number: How many there are.
        whole: Whether the values are whole numbers.
    """

    low: float
    size: float
    number: int
    whole: bool

    @classmethod
    def covering(cls, low: float, high: float, *, whole: bool) -> Bins:
        """Return at most :data:`BINS` of them; each holds as many whole numbers as any other."""
        if whole:
            size = math.ceil((high - low + 1) / BINS)
            return cls(low, size, math.ceil((high - low + 1) / size), True)
        return cls(low, ((high - low) or 1.0) / BINS, BINS, False)

    def words(self, bin: int) -> str:
        """Return what is in an interval."""
        first, after = self.low + bin * self.size, self.low + (bin + 1) * self.size
        if not self.whole:
            return f"{first:.3g} to {after:.3g}"
        return f"{first:.0f}" if self.size == 1 else f"{first:.0f} to {after - 1:.0f}"


def histogram(title: str, counts: Sequence[tuple[Any, ...]], bins: Bins, high: float) -> Histogram | None:
    """Return a histogram; ``None`` without values.

    Args:
        title: What it shows.
        counts: Number of the bin, from 0, → how many.
        bins: What the bins are.
        high: Highest value.
    """
    number = sum(count for _, count in counts)
    if not number:
        return None
    most = max(count for _, count in counts)
    width = WIDTH / bins.number
    bars = tuple(
        Bar(
            round(bin * width, 1),
            round(width - 1, 1),
            round(HEIGHT * count / most, 1),
            f"{bins.words(bin)}: {count:,}",
        )
        for bin, count in counts
    )
    return Histogram(title, bars, bins.low, high, number, most)
