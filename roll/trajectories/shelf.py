"""Keeps the contents of sealed episodes until they are not wanted any more."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from roll.trajectories.sealed import Contents


class Shelf:
    """Contents by number, in the memory of this process."""

    def __init__(self) -> None:
        self._contents: dict[int, Contents] = {}
        self._next = 0
        self._settled = 0
        self._dropped = -math.inf

    def __len__(self) -> int:
        return len(self._contents)

    def put(self, contents: Contents) -> int:
        """Keep contents; return their number."""
        number, self._next = self._next, self._next + 1
        self._contents[number] = contents
        return number

    def get(self, numbers: Sequence[int]) -> list[Contents]:
        """Return contents.

        Raises:
            KeyError: If some were dropped.
        """
        return [self._contents[number] for number in numbers]

    def keep_only(self, wanted: Collection[int], apart: float = 0.0) -> None:
        """Drop what is not wanted, but for what came since the last time: word of it may be on its way.

        Args:
            wanted: The numbers that somebody has.
            apart: Seconds that word takes at most; nothing is dropped where less have passed since the last time.
        """
        now = time.monotonic()
        if now < self._dropped + apart:
            return
        self._dropped = now
        self._contents = {n: held for n, held in self._contents.items() if n >= self._settled or n in wanted}
        self._settled = self._next
