"""Where a benchmark leaves the ratios that it found, for the history: nowhere, unless ``history.py`` asks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

VARIABLE = "ROLL_RATIOS"
"""Environment variable: the file to which ratios are appended, one JSON object a line."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better than its peer we were: larger is better.

    Attributes:
        name: Which ratio of which benchmark.
        median: Of the rounds.
        low: The worst round.
        high: The best round.
    """

    name: str
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, rounds: Sequence[float]) -> Ratio:
        """Return what rounds amount to."""
        return cls(name, median(rounds), min(rounds), max(rounds))


def leave(name: str, rounds: Sequence[float]) -> None:
    """Append what rounds found of a ratio to the file that :data:`VARIABLE` names."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, list(rounds)]) + "\n")


def read(path: Path) -> list[Ratio]:
    """Return what benchmarks left in a file, the rounds of several runs together."""
    rounds: dict[str, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        name, found = json.loads(line)
        rounds.setdefault(name, []).extend(found)
    return [Ratio.of(name, found) for name, found in rounds.items()]
