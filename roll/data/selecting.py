"""Prompts that are chosen by what was learned from them: those come more often whose success changes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from roll.data.dataset import PromptDataset
from roll.data.prompts import Prompt

_FAST: Final = 0.5
_SLOW: Final = 0.1
_EXPLORED: Final = 0.3
"""Share of the positions that have the prompt of the plain order, whatever was learned from it."""


class ProgressSelector:
    """Chooses prompts by learning progress: how far a fast mean of their success is from a slow one.

    After Matiisen et al., "Teacher-Student Curriculum Learning", https://arxiv.org/abs/1707.00183, which samples tasks
    by the absolute slope of their learning curves. A position keeps the domain that it has in the plain order, so
    shares stay exact, and a share of the positions keeps its prompt. Which prompt a position has is decided when it is
    asked for first, by what was learned until then, and is remembered: a run that goes on has the same ones.

    Args:
        data: The prompts in their plain order.
        seed: Keys the choice, with the position.
    """

    def __init__(self, data: PromptDataset, seed: int) -> None:
        self._data = data
        self._seed = seed
        self._rates: dict[int, tuple[float, float]] = {}
        self._chosen: dict[int, int] = {}
        self._rows: dict[str, int] = {}
        self._domain = {int(row): name for name, rows in data.table.domains.items() for row in rows}

    def __len__(self) -> int:
        """Return the number of different prompts."""
        return len(self._data)

    def at(self, position: int) -> Prompt:
        """Return the prompt at ``position`` (0, 1, 2, …), the same whenever it is asked for."""
        if position not in self._chosen:
            self._chosen[position] = self._choose(position)
        row = self._chosen[position]
        prompt = self._data.table[row]
        self._rows[prompt.key] = row
        return prompt

    def learned(self, rates: Mapping[str, float]) -> None:
        """Take note of which share of the tries at each prompt, by its key, succeeded."""
        for key, rate in rates.items():
            row = self._rows.get(key)
            if row is not None:
                fast, slow = self._rates.get(row, (rate, rate))
                self._rates[row] = (fast + _FAST * (rate - fast), slow + _SLOW * (rate - slow))

    def state_dict(self, first: int) -> dict[str, Any]:
        """Return what a checkpoint remembers of a run that needs no position before ``first`` any more, as JSON."""
        rates = {str(row): list(pair) for row, pair in self._rates.items()}
        chosen = {str(position): row for position, row in self._chosen.items() if position >= first}
        return {"rates": rates, "chosen": chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped."""
        self._rates = {int(row): (float(fast), float(slow)) for row, (fast, slow) in state["rates"].items()}
        self._chosen = {int(position): int(row) for position, row in state["chosen"].items()}

    def _choose(self, position: int) -> int:
        plain = self._data.order.at(position)
        explores, where = self._draws(position)
        domain = self._domain[plain]
        known = [row for row in sorted(self._rates) if self._domain[row] == domain]
        progress = np.abs([self._rates[row][0] - self._rates[row][1] for row in known])
        if explores < _EXPLORED or not progress.sum() > 0:
            return plain
        cumulated = np.cumsum(progress) / progress.sum()
        return known[min(int(np.searchsorted(cumulated, where, side="right")), len(known) - 1)]

    def _draws(self, position: int) -> tuple[float, float]:
        """Return two numbers in [0, 1) that seed and position decide."""
        sequence = np.random.SeedSequence([self._seed, zlib.crc32(b"selector"), position])
        first, second = np.random.PCG64(sequence).random_raw(2) / 2.0**64
        return float(first), float(second)
