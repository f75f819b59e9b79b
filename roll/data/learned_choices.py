"""What each position of a run has, chosen by what was learned until it was asked for first, and remembered."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

_FAST: Final = 0.5
_SLOW: Final = 0.1

Choose = Callable[[int, float, float], int]
"""Chooses for a position, with two numbers in [0, 1) that seed and position decide."""


class LearnedChoices:
    """Numbered things by position, chosen by how often they succeeded until then: a run that goes on has the same ones.

    Args:
        seed: Keys the choice, with the position.
        choose: Chooses when a position is asked for first.
    """

    def __init__(self, seed: int, choose: Choose) -> None:
        self._seed = seed
        self._choose = choose
        self._rates: dict[int, tuple[float, float]] = {}
        self._chosen: dict[int, int] = {}

    def at(self, position: int) -> int:
        """Return what ``position`` has, the same whenever it is asked for."""
        if position not in self._chosen:
            self._chosen[position] = self._choose(position, *self._draws(position))
        return self._chosen[position]

    def learned(self, which: int, rate: float) -> None:
        """Take note of which share of the tries at a thing succeeded."""
        fast, slow = self._rates.get(which, (rate, rate))
        self._rates[which] = (fast + _FAST * (rate - fast), slow + _SLOW * (rate - slow))

    def success(self, which: int) -> float | None:
        """Return the fast mean of its success; ``None`` where it was never tried."""
        return self._rates[which][0] if which in self._rates else None

    @property
    def tried(self) -> list[int]:
        """What was tried, in rising order."""
        return sorted(self._rates)

    def by_progress(self, among: Sequence[int], where: float) -> int | None:
        """Return one of those that were tried, as often as its success changes; ``None`` where nothing changes.

        Args:
            among: Which of them.
            where: A number in [0, 1).
        """
        progress = np.abs([self._rates[which][0] - self._rates[which][1] for which in among])
        if not progress.sum() > 0:
            return None
        cumulated = np.cumsum(progress) / progress.sum()
        return among[min(int(np.searchsorted(cumulated, where, side="right")), len(among) - 1)]

    def state_dict(self, first: int) -> dict[str, Any]:
        """Return what a checkpoint remembers of a run that needs no position before ``first`` any more, as JSON."""
        rates = {str(which): list(pair) for which, pair in self._rates.items()}
        chosen = {str(position): which for position, which in self._chosen.items() if position >= first}
        return {"rates": rates, "chosen": chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped."""
        self._rates = {int(which): (float(fast), float(slow)) for which, (fast, slow) in state["rates"].items()}
        self._chosen = {int(position): int(which) for position, which in state["chosen"].items()}

    def _draws(self, position: int) -> tuple[float, float]:
        sequence = np.random.SeedSequence([self._seed, zlib.crc32(b"selector"), position])
        first, second = np.random.PCG64(sequence).random_raw(2) / 2.0**64
        return float(first), float(second)
