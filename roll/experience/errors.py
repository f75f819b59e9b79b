"""What can be wrong with an experience store on disk."""

from __future__ import annotations

from pathlib import Path


class StoreError(RuntimeError):
    """An experience store cannot be used; the message says where it is and what to do."""


class ReviewError(StoreError):
    """A group cannot be decided about."""


class SegmentError(StoreError):
    """A file with groups of a store is damaged, missing or another one.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self._why = path, why

    def __str__(self) -> str:
        return (
            f"{self.path}, which holds groups of an experience store, {self._why}. Put back the file as it was written "
            "(the index of the store refers to it), or go on with an empty store in another folder."
        )
