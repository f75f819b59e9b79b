"""The actor with the index of an experience store: one call after the other, so each is a whole one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.distributed.ray_host import DriverPlace, Failure
from roll.distributed.ray_store.keeper import Keeper, Sealed
from roll.distributed.ray_store.keeping import FiledGroups, HeldGroups, Keeping
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
    """Keeps the index of groups, and where they are.

    Args:
        folder: Where groups are kept, an absolute path on this machine; ``None``: in the object stores of the machines
            from which they are appended.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._opened: Keeping | None = None
        self._keepers: dict[str, Any] = {}

    def standing(self) -> Standing:
        """Return what this store is."""
        return Standing(self._folder, os.getpid())

    def keeper(self, node: str) -> Any:
        """Return the actor that keeps what a machine appends; it is made where there is none, and ends with this."""
        if node not in self._keepers:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            kept = ray.remote(Keeper).options(
                num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=there
            )
            self._keepers[node] = kept.remote(ray.get_runtime_context().current_actor)
        return self._keepers[node]

    def append(self, args: Packed, places: Sequence[ray.ObjectRef[Sealed]]) -> int | Failure:
        """Keep groups; see :meth:`Keeping.append`. Ray must see references to count them, so nothing packs them.

        Args:
            args: What the index keeps of them, and the weights that sampled them.
            places: Where they lie.
        """
        try:
            entries, policy_version = unpack(args)
            return self._keeping.append(entries, places, policy_version)
        except Exception as error:  # whatever it is, it is the caller's
            return Failure.of(error)

    def call(self, caller: DriverPlace, method: str, args: Packed) -> Packed | Failure:
        """Change what is kept, or ask the index.

        Args:
            caller: Where modules of the caller are: a priority may be a function of one.
            method: A method of ``Index``.
            args: Its arguments.
        """
        caller.share_modules()
        try:
            keeping = self._keeping
            function = getattr(keeping if method == "keep_first" else keeping.index, method)
            # A property of the index has no arguments.
            return pack(function(*unpack(args)) if callable(function) else function)
        except Exception as error:  # whatever it is, it is the caller's
            return Failure.of(error)

    def references(self, args: Packed) -> Sequence[ray.ObjectRef[Sealed]] | Failure:
        """Return where groups lie in the object store."""
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
