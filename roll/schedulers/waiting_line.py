"""Requests that wait for a place at an engine, oldest group first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in line.

    Attributes:
        priority: Smaller goes first. What a request will cost plays no part, so long ones wait no longer than short
            ones.
        age: Number of its trajectory; among equals, the one that began first goes first.
        session: Its trajectory.
        place: Is given the replica that serves it.
        avoid: The replica that failed it; ``None`` if none did.
    """

    priority: int
    age: int
    session: str | None
    place: asyncio.Future[Any]
    avoid: Hashable | None = None


_Entry = tuple[int, int, int, Waiter]


class WaitingLine:
    """Waiting requests by the replica that they belong to (``None``: to any).

    Adding and taking cost the logarithm of the length.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable | None, list[_Entry]] = {}
        self._all: list[_Entry] = []
        self._serial = count()
        self._waiting: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting)

    def add(self, waiter: Waiter, home: Hashable | None) -> None:
        """Put a request in the line of its replica."""
        self._waiting[waiter] = None
        entry = (waiter.priority, waiter.age, next(self._serial), waiter)
        heapq.heappush(self._lines.setdefault(home, []), entry)
        heapq.heappush(self._all, entry)
        if len(self._all) > 2 * len(self._waiting) + 64:  # those who were served in their own lines are still in it
            self._all = [each for each in self._all if _waits(each, self._waiting)]
            heapq.heapify(self._all)

    def leave(self, waiter: Waiter) -> None:
        """Take out a request that waits no longer."""
        self._waiting.pop(waiter, None)

    def next(self, replica: Hashable, alone: bool) -> Waiter | None:
        """Take out who gets a place at ``replica``: the first of those that belong there or anywhere.

        If there is none of these, the first of all, unless that replica failed it and is not ``alone`` in being up.
        """
        own = [line for line in (self._first(replica), self._first(None)) if line]
        waiter = heapq.heappop(min(own))[3] if own else self._first_of_all(replica, alone)
        if waiter is not None:
            self._waiting.pop(waiter)
        return waiter

    def scatter(self, home: Hashable) -> None:
        """Let the requests that belong to ``home`` go anywhere."""
        for entry in self._lines.pop(home, []):
            heapq.heappush(self._lines.setdefault(None, []), entry)

    def _first(self, home: Hashable | None) -> list[_Entry]:
        """Return a line whose first entry waits, empty if none does."""
        line = self._lines.get(home, [])
        while line and not _waits(line[0], self._waiting):
            heapq.heappop(line)
        if not line:
            self._lines.pop(home, None)
        return line

    def _first_of_all(self, replica: Hashable, alone: bool) -> Waiter | None:
        """Return who waits longest, wherever it belongs, unless ``replica`` failed it and is not ``alone``."""
        passed: list[_Entry] = []
        found = None
        while self._all and found is None:
            entry = heapq.heappop(self._all)
            if not _waits(entry, self._waiting):
                continue
            if alone or entry[3].avoid is not replica:
                found = entry[3]
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._all, entry)
        return found


def _waits(entry: _Entry, waiting: Mapping[Waiter, None]) -> bool:
    """Whether an entry is of one who waits still; one that was cancelled a moment ago has not left yet."""
    return entry[3] in waiting and not entry[3].place.done()
