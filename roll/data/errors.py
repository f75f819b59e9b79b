"""What is wrong with a data set, where, and what to do."""

from __future__ import annotations

from typing import Literal

Unit = Literal["line", "row"]
"""How places in a file are counted, from 1: ``line`` of a text file, ``row`` of a table."""


class DataError(ValueError):
    """A data set cannot be used.

    Attributes:
        what: What is wrong, in one sentence.
        fix: What to do about it.
        file: The file it was found in, ``None`` if no single file is to blame.
        line: Line or row in ``file``, counted from 1; ``None`` if all of the file is meant.
    """

    def __init__(
        self, what: str, fix: str, *, file: str | None = None, line: int | None = None, unit: Unit = "line"
    ) -> None:
        self.what = what
        self.fix = fix
        self.file = file
        self.line = line
        place = f", {unit} {line}" if line is not None else ""
        super().__init__(f"{f'{file}{place}: ' if file else ''}{what}\n    Fix: {fix}")
