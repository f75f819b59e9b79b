"""An event loop whose clock jumps to the next event: hours of waiting simulated in seconds, by the real code."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Everything waits and no timer is set, so that nothing will ever happen."""


class _JumpingSelector(selectors.BaseSelector):
    """Advances a clock by what the event loop would have slept."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(f"at {self.now:g} s of simulated time everything waits for something that never comes")
        self.now += timeout
        return self._real.select(0)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in simulated time: no timer waits, and ``loop.time()`` counts from 0.

    Only for code that waits for timers and for itself; threads, sockets and processes do not exist there.

    Raises:
        Deadlock: If everything waits and no timer is set.
    """
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
