"""What lies on every device in each stage of a step: roles that share devices take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from roll.planning.roles import RoleDemand

STAGES: Final = ("rollout", "update", "weight sync")
CONTEXT: Final = int(1.0 * 2**30)
"""What CUDA and NCCL take of a device for themselves."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one role has on a device in a stage.

    Attributes:
        role: Its key path.
        part: What it is: ``weights``, ``gradients``, ``cache``, …
        bytes: How much.
    """

    role: str
    part: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """One kind of device in one stage.

    Attributes:
        stage: One of :data:`STAGES`.
        devices: Those with the same roles.
        shares: What lies there.
    """

    stage: str
    devices: tuple[int, ...]
    shares: tuple[Share, ...]

    @property
    def bytes(self) -> int:
        """All of it, with what CUDA takes."""
        return CONTEXT + sum(share.bytes for share in self.shares)


def device_stages(demands: Sequence[RoleDemand], device: int, bucket: int) -> list[DeviceStage]:
    """Return what lies on the devices in each stage.

    Args:
        demands: The roles.
        device: Bytes of a device.
        bucket: Bytes of weights that are sent to engines at once.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number in sorted({number for demand in demands for number in demand.devices}):
        groups.setdefault(tuple(d.role for d in demands if number in d.devices), []).append(number)
    by_role = {demand.role: demand for demand in demands}
    samples = any(demand.engine for demand in demands)
    return [
        DeviceStage(stage, tuple(numbers), tuple(_shares(stage, [by_role[role] for role in roles], device, bucket)))
        for roles, numbers in groups.items()
        for stage in (STAGES if samples else STAGES[1:2])
    ]


def _shares(stage: str, here: Sequence[RoleDemand], device: int, bucket: int) -> Iterator[Share]:
    samples = any(demand.engine is not None and not demand.reads for demand in here)
    shared = samples and any(demand.training for demand in here)
    computing = [demand for demand in here if demand.training]
    for demand in here:
        if demand.engine is not None:
            yield from _engine_shares(stage, demand, device, bucket, sleeps=shared and not demand.reads)
        elif not shared or stage == "update" or (stage == "weight sync" and demand.role == "actor_train"):
            states = demand.states
            yield Share(demand.role, "weights", states.weights)
            if stage == "update" or not shared:
                yield Share(demand.role, "gradients", states.gradients)
                yield Share(demand.role, "optimiser", states.optimizer)
                yield Share(demand.role, "gathered and sent", states.buffers)
    if computing and (not shared or stage == "update"):
        # Roles of a device compute one after another.
        most = max(computing, key=lambda demand: demand.working)
        passes = most.passes
        if most.working > passes.peak:
            yield Share(most.role, "while weights change", most.working)
            return
        yield Share(most.role, "activations", passes.activations)
        part = "logits" if passes.logits >= passes.gradients else "one layer's backward pass"
        yield Share(most.role, part, max(passes.logits, passes.gradients))


def _engine_shares(stage: str, demand: RoleDemand, device: int, bucket: int, *, sleeps: bool) -> Iterator[Share]:
    engine = demand.engine
    assert engine is not None
    if sleeps and stage == "update":
        return
    yield Share(demand.role, "weights", engine.weights)
    if stage == "weight sync" and not demand.reads:
        yield Share(demand.role, "weights under way", bucket)
    if not sleeps or stage == "rollout":
        yield Share(demand.role, "key-value cache", engine.cache(device))
