"""The actor of an experience store: one call after the other, so each is a whole one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from roll.distributed.ray_host import DriverPlace, Failure
from roll.distributed.ray_store.keeping import FiledGroups, HeldGroups, Keeping, Sealed
from roll.distributed.transport import Packed, pack, unpack


@dataclass(frozen=True, slots=True)
class Standing:
    """What programs that find a store ask about it.

    Attributes:
        folder: Where it keeps its groups; ``None``: in the object store.
        pid: Its process.
    """

    folder: str | None
    pid: int


class StoreHost:
    """Keeps groups and their index.

    Args:
        folder: Where groups are kept, an absolute path on this machine; ``None``: in the object store.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._opened: Keeping | None = None

    def standing(self) -> Standing:
        """Return what this store is."""
        return Standing(self._folder, os.getpid())

    def call(self, caller: DriverPlace, method: str, args: Packed) -> Packed | Failure:
        """Change what is kept, or ask the index.

        Args:
            caller: Where modules of the caller are: a priority may be a function of one.
            method: A method of :class:`Keeping`, or of ``Index``.
            args: Its arguments.
        """
        caller.share_modules()
        try:
            keeping = self._keeping
            function = getattr(keeping if method in ("append", "keep_first") else keeping.index, method)
            # A property of the index has no arguments.
            return pack(function(*unpack(args)) if callable(function) else function)
        except Exception as error:  # whatever it is, it is the caller's
            return Failure.of(error)

    def references(self, args: Packed) -> Sequence[ray.ObjectRef[Sealed]] | Failure:
        """Return where groups lie in the object store; Ray must see references to count them, so nothing packs them."""
        try:
            return self._keeping.references(*unpack(args))
        except Exception as error:  # whatever it is, it is the caller's
            return Failure.of(error)

    @property
    def _keeping(self) -> Keeping:
        # Not in the constructor: an actor whose constructor failed says so in Ray's words, and is made again and again.
        if self._opened is None:
            self._opened = HeldGroups() if self._folder is None else FiledGroups(Path(self._folder))
        return self._opened
