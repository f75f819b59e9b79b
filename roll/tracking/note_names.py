"""Names of texts for services that keep one text of each name and step."""

from __future__ import annotations

from collections import Counter


class NoteNames:
    """Gives the texts of a step names of their own: ``notes``, ``notes/2``, ``notes/3``, …."""

    def __init__(self) -> None:
        self._given: Counter[int] = Counter()

    def next(self, step: int) -> str:
        """Return the name of the next text of ``step``."""
        self._given[step] += 1
        return "notes" if self._given[step] == 1 else f"notes/{self._given[step]}"
