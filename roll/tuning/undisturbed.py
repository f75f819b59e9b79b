"""Work that Ctrl-C waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Ctrl-C until the end of a block: in the middle of a statement it would leave a database locked.

    So with every signal that raises what Ctrl-C does.

    Raises:
        KeyboardInterrupt: At the end, if it came.
    """
    if threading.current_thread() is not threading.main_thread():  # others are never disturbed
        yield
        return
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    kept = [number for number in signals if signal.getsignal(number) is signal.default_int_handler]
    for number in kept:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number in kept:
            signal.signal(number, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
