"""Requests that wait for a place at an engine, oldest group first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Hashable, Iterator
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
        self._serial = count()
        self._waiting: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting)

    def add(self, waiter: Waiter, home: Hashable | None) -> None:
        """Put a request in the line of its replica."""
        self._waiting[waiter] = None
        heapq.heappush(self._lines.setdefault(home, []), (waiter.priority, waiter.age, next(self._serial), waiter))

    def leave(self, waiter: Waiter) -> None:
        """Take out a request that waits no longer."""
        self._waiting.pop(waiter, None)

    def next(self, replica: Hashable, alone: bool) -> Waiter | None:
        """Take out who gets a place at ``replica``: the first of those that belong there or anywhere.

        If there is none of these, the first of all, unless that replica failed it and is not ``alone`` in being up.
        """
        own = [line for line in (self._first(replica), self._first(None)) if line]
        if not own:
            own = [line for home in list(self._lines) if (line := self._first(home))]
            own = [line for line in own if alone or line[0][3].avoid is not replica]
        if not own:
            return None
        waiter = heapq.heappop(min(own))[3]
        self._waiting.pop(waiter)
        return waiter

    def scatter(self, home: Hashable) -> None:
        """Let the requests that belong to ``home`` go anywhere."""
        for entry in self._lines.pop(home, []):
            heapq.heappush(self._lines.setdefault(None, []), entry)

    def _first(self, home: Hashable | None) -> list[_Entry]:
        """Return a line whose first entry waits, empty if none does."""
        line = self._lines.get(home, [])
        # One that was cancelled a moment ago has not left yet.
        while line and (line[0][3] not in self._waiting or line[0][3].place.done()):
            heapq.heappop(line)
        if not line:
            self._lines.pop(home, None)
        return line
