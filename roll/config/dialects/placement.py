"""How roles share the devices of a run: guides count machines and devices, here every role names its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.config.device_mapping import MAX_DEVICES, format_device_mapping
from roll.config.dialects.rows import Sets
from roll.config.errors import FixableError


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a run.

    Attributes:
        nodes: Machines.
        devices_per_node: Devices of one.
    """

    nodes: int
    devices_per_node: int

    def __post_init__(self) -> None:
        if self.devices > MAX_DEVICES:
            raise FixableError(f"{self.devices} devices are more than {MAX_DEVICES}.", "use fewer machines or devices.")

    @property
    def devices(self) -> int:
        """Devices of all machines."""
        return self.nodes * self.devices_per_node

    def together(self, *roles: str) -> Sets:
        """Return the native keys by which ``roles`` take turns on all devices."""
        return self._sets(dict.fromkeys(roles, range(self.devices)))

    def apart(self, devices: Mapping[str, int]) -> Sets:
        """Return the native keys by which roles have devices of their own, as many as each needs, in this order.

        Raises:
            FixableError: They need more than there are.
        """
        needed = sum(devices.values())
        if needed > self.devices:
            roles = " and ".join(devices)
            raise FixableError(f"{roles} need {needed} devices, and there are {self.devices}.", "raise the number.")
        mapped, first = {}, 0
        for role, count in devices.items():
            mapped[role] = range(first, first + count)
            first += count
        return self._sets(mapped)

    def _sets(self, mapped: Mapping[str, range]) -> Sets:
        values = {"num_gpus_per_node": self.devices_per_node}
        if self.devices == 1:
            # Without a mapping a role takes the one device, if there is one.
            return Sets(values)
        fills: dict[str, Any] = {
            f"{role}.device_mapping": format_device_mapping(devices) for role, devices in mapped.items() if devices
        }
        return Sets(values, {**fills, "cluster": "ray"}, "several devices take a process each, so `cluster` is `ray`")
