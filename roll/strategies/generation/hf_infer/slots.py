"""Who owns which slot of the cache, and which tokens lie in it."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One row of the cache.

    Attributes:
        index: Row number.
        session: Trajectory whose prefix it keeps, ``None`` when it will be freed after the running request.
        tokens: Tokens whose keys and values are valid, while no request runs in it.
        busy: Whether a request runs in it.
    """

    index: int
    session: str | None = None
    tokens: list[int] = field(default_factory=list)
    busy: bool = False


class SlotPool:
    """Hands out slots: a session's own, else the lowest free one, else the one of the session idle for longest.

    Args:
        size: Number of slots.
    """

    def __init__(self, size: int) -> None:
        self._slots = [Slot(index) for index in range(size)]
        self._free = list(range(size))
        self._sessions: dict[str, Slot] = {}
        self._idle: OrderedDict[str, Slot] = OrderedDict()
        self.evictions = 0

    def acquire(self, session: str | None) -> Slot | None:
        """Return a slot marked busy, ``None`` if all are busy.

        A session with another request running gets an unrelated slot, which keeps nothing afterwards.
        """
        owned = self._sessions.get(session) if session is not None else None
        if owned is not None and not owned.busy:
            assert session is not None
            del self._idle[session]
            owned.busy = True
            return owned
        if self._free:
            slot = self._slots[heapq.heappop(self._free)]
        elif self._idle:
            name, slot = self._idle.popitem(last=False)
            del self._sessions[name]
            self.evictions += 1
        else:
            return None
        slot.tokens, slot.busy, slot.session = [], True, None
        if session is not None and owned is None:
            slot.session = session
            self._sessions[session] = slot
        return slot

    def finish(self, slot: Slot, tokens: list[int]) -> None:
        """End the request running in ``slot``; ``tokens`` lie in the cache and stay if a session owns the slot."""
        slot.busy = False
        if slot.session is None or not tokens:
            self._forget(slot)
        else:
            slot.tokens = tokens
            self._idle[slot.session] = slot

    def release(self, session: str) -> None:
        """Forget the prefix of ``session``; while a request runs in its slot, once that ends."""
        slot = self._sessions.pop(session, None)
        if slot is None:
            return
        slot.session = None
        if not slot.busy:
            del self._idle[session]
            self._forget(slot)

    def drop_prefixes(self) -> None:
        """Forget every idle prefix (the weights changed)."""
        for session in list(self._idle):
            self.release(session)

    def _forget(self, slot: Slot) -> None:
        if slot.session is not None:
            del self._sessions[slot.session]
        slot.session, slot.tokens = None, []
        heapq.heappush(self._free, slot.index)


def common_prefix(left: list[int], right: list[int]) -> int:
    """Number of leading tokens that two sequences share."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])
