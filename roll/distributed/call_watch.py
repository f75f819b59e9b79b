"""Notices calls to workers that take far longer than they ever did: a worker that hangs raises nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_FIRST_SECONDS: Final = 600.0
"""How long a call may take of which no earlier one is known."""
_LEAST_SECONDS: Final = 60.0
_TIMES: Final = 5.0
_LOOK_EVERY: Final = 5.0


@dataclass(slots=True)
class _Call:
    role: str
    who: Sequence[str]
    what: str
    begun: float
    said: bool = False


class CallWatch:
    """Knows the calls to workers that are under way, and says of one that takes too long where and for how long.

    Too long is five times as long as the longest of the same method that ended, and a minute at least; ten minutes
    where none ended yet. It is said once of each call, from a thread of its own, since a worker in this process holds
    everything else up.

    Args:
        clock: Seconds.
        look_every: Seconds between two looks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, look_every: float = _LOOK_EVERY) -> None:
        self._clock = clock
        self._look_every = look_every
        self._running: dict[int, _Call] = {}
        self._longest: dict[tuple[str, str], float] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    @contextmanager
    def call(self, role: str, who: Sequence[str], what: str) -> Iterator[None]:
        """Take note of a call while it is under way.

        Args:
            role: Whose workers.
            who: Which, as messages name them.
            what: The method.
        """
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._running[number] = _Call(role, who, what, self._clock())
        try:
            yield
        finally:
            with self._lock:
                done = self._running.pop(number)
                took, kind = self._clock() - done.begun, (role, what)
                self._longest[kind] = max(self._longest.get(kind, 0.0), took)

    def late(self) -> list[str]:
        """Return, of every call that takes too long now and was not spoken of before, what is to be said."""
        found = []
        with self._lock:
            for call in self._running.values():
                took, longest = self._clock() - call.begun, self._longest.get((call.role, call.what))
                limit = _FIRST_SECONDS if longest is None else max(_LEAST_SECONDS, _TIMES * longest)
                if not call.said and took > limit:
                    call.said = True
                    found.append(_words(call, took, longest))
        return found

    @contextmanager
    def telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Meanwhile, look again and again, and say what is late."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(self._look_every):
                for words in self.late():
                    tell(words)

        thread = threading.Thread(target=look, name="call watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _words(call: _Call, took: float, longest: float | None) -> str:
    before = "no earlier one has ended" if longest is None else f"the longest one before took {longest:.1f} s"
    return (
        f"{call.role} {', '.join(call.who)}: {call.what} has been under way for {took:.0f} s; {before}. It may hang. "
        "`py-spy dump --pid PID` shows where; rpc_timeout says when the run gives it up."
    )
