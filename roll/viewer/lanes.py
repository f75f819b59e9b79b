"""Where the time of an episode went: its phases one after another, drawn to scale, as far as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roll.trajectories.model import Turn

_WORDS: Final = {
    "wait": "wait for an engine",
    "generate": "generate",
    "queue": "wait for the environment",
    "env": "environment",
    "tool": "tools",
    "reward": "grade",
    "render": "next prompt",
}
"""Phases in the order in which a turn has them, and what people read."""


def phases(seconds: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """Return kind, words and seconds of each phase, in the order in which a turn has them."""
    return [
        (name if name in _WORDS else "other", _WORDS.get(name, name), seconds[name])
        for name in sorted(seconds, key=_order)
    ]


WIDTH: Final = 1000.0
"""Units that the lane is wide."""


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a turn: what kind, from where, how wide, and what pointing at it shows."""

    kind: str
    x: float
    width: float
    hint: str


@dataclass(frozen=True, slots=True)
class Update:
    """New weights: within ``width`` from ``x``; no width where they came between two turns."""

    x: float
    width: float
    hint: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The time of some turns.

    Attributes:
        spans: Phases.
        turns: Where each turn begins, with its number from 1; those without times are not among them.
        updates: New weights.
        totals: Kind, words and seconds of every phase, over all turns.
        seconds: All of them.
        missing: Turns whose times were not recorded.
    """

    spans: tuple[Span, ...]
    turns: tuple[tuple[float, int], ...]
    updates: tuple[Update, ...]
    totals: tuple[tuple[str, str, float], ...]
    seconds: float
    missing: tuple[int, ...]


def make_lane(turns: Sequence[Turn]) -> Lane | None:
    """Return the time of turns; ``None`` where none was recorded."""
    seconds = sum(sum(turn.seconds.values()) for turn in turns)
    if seconds <= 0:
        return None
    spans, begins, updates, at = list[Span](), list[tuple[float, int]](), list[Update](), 0.0
    totals: dict[str, float] = {}
    for number, turn in enumerate(turns, start=1):
        begin, end_of_generating = at, at
        for name in turn.seconds:
            totals[name] = totals.get(name, 0.0) + turn.seconds[name]
        for kind, words, taken in phases(turn.seconds):
            width = WIDTH * taken / seconds
            spans.append(Span(kind, round(at, 2), round(width, 2), f"turn {number}, {words}: {taken:.3g} s"))
            at += width
            end_of_generating = at if kind == "generate" else end_of_generating
        if turn.seconds:
            begins.append((round(begin, 2), number))
        old, new = turn.policy_version
        before = turns[number - 2].policy_version[1] if number > 1 else old
        if old != before:
            updates.append(Update(round(begin, 2), 0.0, f"weights {before} to {old} before turn {number}"))
        if new != old:
            width = round(end_of_generating - begin, 2)
            hint = f"weights {old} to {new} while turn {number} was generated; the moment was not recorded"
            updates.append(Update(round(begin, 2), width, hint))
    missing = tuple(number for number, turn in enumerate(turns, start=1) if not turn.seconds)
    return Lane(tuple(spans), tuple(begins), tuple(updates), tuple(phases(totals)), seconds, missing)


def _order(name: str) -> int:
    return list(_WORDS).index(name) if name in _WORDS else len(_WORDS)
