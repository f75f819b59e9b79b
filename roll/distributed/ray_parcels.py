"""Values that one worker keeps for others: who sends one gets a small parcel in its place.

Ray's own references would do that as well, were it not that Ray may free a value when a process that passed its
reference on dies. Here a worker holds values without which the run could not go on anyway, and the driver says which of
them it still has.
"""

from __future__ import annotations

import weakref
from typing import Any

from roll.distributed.ray_group import RayCalls


class RayParcel:
    """Where a value lies; it stays there as long as the driver has this.

    Args:
        keepers: The namespace of the role whose only worker keeps the value.
        role: The role.
        number: What the worker calls the value.
    """

    __slots__ = ("__weakref__", "keepers", "number", "role")

    def __init__(self, keepers: str, role: str, number: int) -> None:
        self.keepers, self.role, self.number = keepers, role, number
        _here.add(self)

    def open(self) -> Any:
        """Fetch the value; the worker's method ``contents`` is called.

        Raises:
            WorkerDiedError: If the worker that keeps it is gone.
        """
        calls = RayCalls(self.role, 1, self.keepers, float("inf"), is_async=True)
        (value,) = calls.wait(0, "contents", [self.number])
        return value

    def __reduce__(self) -> Any:
        return RayParcel, (self.keepers, self.role, self.number)


_here: weakref.WeakSet[RayParcel] = weakref.WeakSet()
"""The parcels that this process has."""


class RayParcels:
    """Sends values to the worker that keeps them; can be given to other workers.

    Args:
        keepers: Calls to that worker. Its method ``hold`` takes a value and returns its number, a whole number.
    """

    def __init__(self, keepers: RayCalls) -> None:
        self._keepers = keepers

    async def put(self, value: Any) -> RayParcel:
        """Send a value; it outlives this process.

        Raises:
            WorkerDiedError: If the worker that keeps values is gone.
        """
        return self.at(await self._keepers.one(0, "hold", value))

    def at(self, number: int) -> RayParcel:
        """Return the parcel of a value that the worker keeps by this number."""
        return RayParcel(self._keepers.namespace, self._keepers.role, number)

    def here(self) -> set[int]:
        """Return the numbers of the values whose parcels this process has."""
        return {parcel.number for parcel in _here if parcel.keepers == self._keepers.namespace}
