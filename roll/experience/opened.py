"""A store that is there already, wherever it is: for who looks into it and learns nothing from it."""

from __future__ import annotations

from pathlib import Path

from roll.experience.base import ExperienceStore
from roll.experience.errors import StoreError
from roll.experience.folder import FolderStore, is_store


def open_place(place: Path | str, *, patience: float) -> ExperienceStore:
    """Open a store that is there.

    Args:
        place: Its folder, or the address of its database, which has ``://`` in it.
        patience: Seconds to wait for a database that does not answer.

    Raises:
        StoreError: There is none, or it cannot be used.
    """
    if isinstance(place, str) and "://" in place:
        try:
            from roll.experience.sql import SqlStore
        except ImportError as error:
            raise StoreError(str(error)) from error
        return SqlStore(place, patience=patience)
    folder = Path(place)
    if not is_store(folder):
        raise StoreError(
            f"{folder} is no experience store (yet): it has no index. Name the folder that experience.path names, or "
            "wait until a run has filled it."
        )
    return FolderStore(folder)
