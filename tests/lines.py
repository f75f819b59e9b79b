"""What something costs, in lines of Python that run: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Lines:
    """How many lines have run.

    Attributes:
        counted: The number.
    """

    def __init__(self, file: str) -> None:
        self.counted = 0
        self._file = file

    def count(self, frame: Any, event: str, arg: object) -> Any:
        """Count a line; see :func:`sys.settrace`."""
        self.counted += event == "line" and frame.f_code.co_filename.endswith(self._file)
        return self.count


@contextmanager
def lines_run(file: str = "") -> Iterator[Lines]:
    """Count the lines of functions that are called while it is entered; only those of a file, where one is named."""
    lines = Lines(file)
    sys.settrace(lines.count)
    try:
        yield lines
    finally:
        sys.settrace(None)
