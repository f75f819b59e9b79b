"""A store that is there already, wherever it is: for who looks into it and learns nothing from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from roll.experience.base import ExperienceStore
from roll.experience.errors import StoreError
from roll.experience.folder import FolderStore, is_store

IN_RAY: Final = "ray:"
"""How the address of a store in a Ray cluster begins: ``ray:NAME``, or ``ray:NAMESPACE/NAME``."""

_OPENS_IN_RAY: Final = "roll.distributed.ray_store:open_address"
"""Named, and imported where it is used: Ray is an extra, and what is in it is above this package."""


def place_of(experience: Mapping[str, Any] | str | None) -> str | None:
    """Return where the store of a run is, its folder or address, or ``None``.

    Args:
        experience: The section of its configuration as it was written.
    """
    if not isinstance(experience, Mapping):
        return experience
    if experience.get("type") == "ray" and experience.get("name"):
        return address_in_ray(experience["name"], experience.get("namespace"))
    path = experience.get("path")
    return str(path) if path else None


def address_in_ray(name: str, namespace: str | None) -> str:
    """Return the address of a store in a Ray cluster."""
    return f"{IN_RAY}{namespace}/{name}" if namespace else f"{IN_RAY}{name}"


def open_place(place: Path | str, *, patience: float) -> ExperienceStore:
    """Open a store that is there.

    Args:
        place: Its folder, the address of its database, which has ``://`` in it, or that of a store in a Ray cluster,
            ``ray:NAME`` or ``ray:NAMESPACE/NAME``; ``RAY_ADDRESS`` names the cluster.
        patience: Seconds to wait for a database or a cluster that does not answer.

    Raises:
        StoreError: There is none, or it cannot be used.
    """
    if isinstance(place, str) and place.startswith(IN_RAY) and "://" not in place:
        try:
            opens = resolve_name(_OPENS_IN_RAY)
        except ImportError as error:
            raise StoreError(f"the store is in a Ray cluster, and Ray is not there: {error}") from error
        opened: ExperienceStore = opens(place, patience)
        return opened
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
