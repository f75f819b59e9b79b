"""Changes what an environment must not depend on: the clock, and the generators that everybody shares."""

from __future__ import annotations

import datetime
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

A_DAY_AND_MORE = 86_400 + 3_600 + 61
PER_CALL = 61.0
"""Seconds that seem to pass whenever somebody looks at the clock."""
_DELTA = datetime.timedelta(seconds=A_DAY_AND_MORE)
_LEFT_ALONE = {"threading", "queue", "selectors", "asyncio", "subprocess", "logging", "roll", "_datetime"}
"""What measures time-outs, and what looks on."""


def set_shared_generators(state: int) -> None:
    """Set Python's and NumPy's shared generators; an episode that draws from them changes with ``state``."""
    random.seed(state)
    np.random.seed(state)


def move_clock() -> None:
    """Make it another day, on which time flies, for whoever asks ``time`` and ``datetime`` from now on.

    Also for modules that hold the functions by name (``from time import time``). ``time.monotonic`` keeps its pace,
    since time-outs of event loops are measured with it.
    """
    calls = 0

    def later() -> float:
        nonlocal calls
        calls += 1
        return A_DAY_AND_MORE + calls * PER_CALL

    def moved(real: Callable[[], float], by: Callable[[], float]) -> Callable[[], float]:
        return lambda: real() + by()

    def in_whole_nanoseconds() -> int:
        return int(later() * 1e9)

    replaced: dict[Any, Any] = {
        time.time: moved(time.time, later),
        time.time_ns: moved(time.time_ns, in_whole_nanoseconds),
        time.perf_counter: moved(time.perf_counter, later),
        time.perf_counter_ns: moved(time.perf_counter_ns, in_whole_nanoseconds),
        time.monotonic: moved(time.monotonic, lambda: A_DAY_AND_MORE),
        time.monotonic_ns: moved(time.monotonic_ns, lambda: A_DAY_AND_MORE * 10**9),
        datetime.datetime: _Later,
        datetime.date: _LaterDate,
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _LEFT_ALONE:
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and _known(value, replaced):
                setattr(module, attribute, replaced[value])


def _known(value: Any, replaced: dict[Any, Any]) -> bool:
    try:
        return value in replaced
    except TypeError:  # it has no hash
        return False


class _KnowsItsOwn(type):
    """Takes what C makes for an instance too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _Later(datetime.datetime, metaclass=_KnowsItsOwn):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return super().now(tz) + _DELTA

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class _LaterDate(datetime.date, metaclass=_KnowsItsOwn):
    @classmethod
    def today(cls) -> Any:
        return super().today() + _DELTA
