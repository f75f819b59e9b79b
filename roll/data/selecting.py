"""Prompts that are chosen by what was learned from them: those come more often whose success changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.data.dataset import PromptDataset
from roll.data.learned_choices import LearnedChoices
from roll.data.prompts import Prompt, PromptPlace

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
        self._choices = LearnedChoices(seed, self._choose)
        self._rows: dict[str, int] = {}
        self._domain = {int(row): name for name, rows in data.table.domains.items() for row in rows}

    def __len__(self) -> int:
        """Return the number of different prompts."""
        return len(self._data)

    def at(self, position: int) -> Prompt:
        """Return the prompt at ``position`` (0, 1, 2, …), the same whenever it is asked for."""
        return self._data.table[self.place(position).row]

    def place(self, position: int) -> PromptPlace:
        """Return which prompt stands at ``position``, without its text."""
        place = self._data.table.place(self._choices.at(position))
        self._rows[place.key] = place.row
        return place

    def learned(self, rates: Mapping[str, float]) -> None:
        """Take note of which share of the tries at each prompt, by its key, succeeded."""
        for key, rate in rates.items():
            row = self._rows.get(key)
            if row is not None:
                self._choices.learned(row, rate)

    def state_dict(self, first: int) -> dict[str, Any]:
        """Return what a checkpoint remembers of a run that needs no position before ``first`` any more, as JSON."""
        return self._choices.state_dict(first)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped."""
        self._choices.load_state_dict(state)

    def _choose(self, position: int, explores: float, where: float) -> int:
        plain = self._data.order.at(position)
        if explores < _EXPLORED:
            return plain
        domain = self._domain[plain]
        known = [row for row in self._choices.tried if self._domain[row] == domain]
        chosen = self._choices.by_progress(known, where)
        return plain if chosen is None else chosen
