"""Files of trajectories that cannot be used."""

from __future__ import annotations

from pathlib import Path


class TaughtRowError(ValueError):
    """What a teacher said cannot be read.

    Attributes:
        path: The file.
        row: The row, counted from 1; ``None`` if all of the file is meant.
    """

    def __init__(self, path: Path, row: int | None, what: str) -> None:
        self.path, self.row = path, row
        place = f", row {row}" if row is not None else ""
        super().__init__(f"{path}{place}: {what}.")
