"""Which domain a position draws from: exact shares at every point of the run, from rational arithmetic."""

from __future__ import annotations

import heapq
import math
import threading
from array import array
from collections.abc import Sequence
from fractions import Fraction


class Shares:
    """An endless sequence of domains in which each has its share at any point.

    Among the first n positions a domain with share p stands ``floor(n·p)`` or ``ceil(n·p)`` times. The k-th turn of a
    domain may come no earlier than position ``ceil((k-1)/p)`` and no later than ``ceil(k/p)``; among those that may,
    the one that must come first is taken. That such a schedule always works out is the theorem behind proportional
    fair scheduling (Baruah et al., 1996, "Proportionate progress").
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        """Prepare the sequence.

        Args:
            shares: Share of each domain; at least 0, together 1.
        """
        # Integers, since a slot is taken for every prompt: share = numerator / period.
        self._period = math.lcm(*(share.denominator for share in shares))
        self._numerators = [int(share * self._period) for share in shares]
        self._chosen = array("H")
        self._turns = array("Q")
        self._counts = [0] * len(shares)
        # A domain waits in `_later` by the slot from which its next turn may come, then in `_ready` by its last slot.
        self._later = [(0, index) for index, share in enumerate(shares) if share]
        self._ready: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Shares], tuple[list[Fraction]]]:
        # Locks stay where they are; in another process the sequence is made again.
        return Shares, ([Fraction(numerator, self._period) for numerator in self._numerators],)

    def at(self, position: int) -> tuple[int, int]:
        """Return the index of the domain at ``position``, and how often it stood at earlier positions."""
        rounds, offset = divmod(position, self._period)
        if offset >= len(self._chosen):
            with self._lock:
                while offset >= len(self._chosen):
                    self._extend()
        domain = self._chosen[offset]
        return domain, rounds * self._numerators[domain] + self._turns[offset]

    def _extend(self) -> None:
        slot = len(self._chosen)
        while self._later and self._later[0][0] <= slot:
            _, index = heapq.heappop(self._later)
            last = -(-(self._counts[index] + 1) * self._period // self._numerators[index])
            heapq.heappush(self._ready, (last, index))
        _, index = heapq.heappop(self._ready)
        self._turns.append(self._counts[index])
        self._counts[index] += 1
        heapq.heappush(self._later, (self._counts[index] * self._period // self._numerators[index], index))
        # Last, because readers outside the lock look at its length.
        self._chosen.append(index)
