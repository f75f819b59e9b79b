"""The connection to Ray: a private one on this machine, or a cluster of many."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.config import RunConfig, RunError
from roll.distributed.call_watch import CallWatch
from roll.distributed.placement import (
    ClusterPlan,
    ClusterResources,
    NodeResources,
    check_fits,
    plan_placement,
    startable,
)
from roll.distributed.ray_address import named_cluster
from roll.distributed.ray_group import RayGroup, Site
from roll.distributed.ray_joining import join
from roll.distributed.ray_starting import start_here
from roll.distributed.worker_group import WorkerGroup, WorkerSpec


class RayCluster:
    """Starts the roles of a run as Ray actors, where its plan says. Make it with :meth:`connect`."""

    def __init__(self, plan: ClusterPlan, site: Site, rpc_timeout: float, owns_ray: bool) -> None:
        self.plan = plan
        self._site = site
        self._rpc_timeout = rpc_timeout
        self._owns_ray = owns_ray
        self._groups: dict[str, RayGroup] = {}
        self.watch = CallWatch()

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """The workers that were started, by role."""
        return self._groups

    @classmethod
    async def connect(cls, config: RunConfig) -> RayCluster:
        """Connect to Ray and reserve what the run needs.

        Ray that this process has started already is used and left running. Else ``RAY_ADDRESS`` says which cluster to
        join. Without it, Ray is started on this machine alone, with as many logical processors as there are workers,
        so that a small machine can hold a small run of many roles.

        Raises:
            ConfigError: If the cluster is too small; nothing stays reserved.
            RunError: If the cluster cannot be reached, or is busy for longer than ``rpc_timeout``.
        """
        plan = plan_placement(config)
        owns_ray = not ray.is_initialized()
        if owns_ray:
            _start_ray(plan)
        try:
            check_fits(plan, cluster_resources())
            reservation = await _reserve(plan, config.rpc_timeout)
            try:
                devices = await _device_names(plan, reservation, config.rpc_timeout)
            except BaseException:
                remove_placement_group(reservation)
                raise
        except BaseException:
            if owns_ray:
                ray.shutdown()
            raise
        site = Site(reservation, devices, plan.env)
        return cls(plan, site, config.rpc_timeout, owns_ray)

    async def start(self, role: str, spec: WorkerSpec) -> RayGroup:
        """Start the workers of a role of the plan; see :meth:`roll.distributed.ray_group.RayGroup.start`."""
        plan = startable(self.plan, role, self._groups)
        group = await RayGroup.start(plan, spec, self._site, rpc_timeout=self._rpc_timeout, watch=self.watch)
        self._groups[role] = group
        return group

    def write_timeline(self, path: Path) -> None:
        """Write what every process did when, for ``chrome://tracing`` or Perfetto."""
        ray.timeline(str(path))

    async def close(self) -> None:
        """End all workers, give back what was reserved, and stop Ray if it was started here."""
        try:
            for group in self._groups.values():
                await group.close()
        finally:
            self._groups = {}
            if ray.is_initialized():
                remove_placement_group(self._site.reservation)
                if self._owns_ray:
                    ray.shutdown()


def cluster_resources() -> ClusterResources:
    """Return the machines of the cluster, with what Ray manages there."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return ClusterResources(
        tuple(
            NodeResources(
                node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0),
                devices=int(node["Resources"].get("GPU", 0)),
            )
            for node in alive
        )
    )


def _start_ray(plan: ClusterPlan) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = named_cluster()
    if address:
        join(address, or_else=", or unset it to run on this machine alone")
        return
    # Ray's workers would be nicer than anything else on the machine, as if they were background jobs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    needed = sum(plan.cpus(node) for node in range(plan.nodes))
    start_here(num_cpus=max(needed, os.cpu_count() or 1), include_dashboard=False, logging_level=logging.WARNING)


async def _reserve(plan: ClusterPlan, timeout: float) -> PlacementGroup:
    """Reserve one bundle per machine: its devices, and processors for its workers.

    Raises:
        RunError: If other work keeps the cluster busy for longer than ``timeout`` seconds.
    """
    bundles = [_bundle(plan, node) for node in range(plan.nodes)]
    reservation = placement_group(bundles, strategy="STRICT_SPREAD" if plan.nodes > 1 else "STRICT_PACK")
    try:
        await asyncio.wait_for(_ready(reservation), timeout)
    except TimeoutError as error:
        remove_placement_group(reservation)
        free = ", ".join(f"{value:g} {name}" for name, value in ray.available_resources().items() if name in _SHOWN)
        raise RunError(
            f"The Ray cluster did not have {bundles} free within {timeout:g} s; now there is {free or 'nothing'}. "
            "Wait for other runs to end (ray status), or use fewer devices."
        ) from error
    return reservation


_SHOWN = ("CPU", "GPU")


def _bundle(plan: ClusterPlan, node: int) -> dict[str, float]:
    wanted = {"CPU": plan.cpus(node), "GPU": len(plan.devices(node))}
    # Ray takes no empty bundle; a machine of the plan that no role uses still counts as one.
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}


async def _ready(reservation: PlacementGroup) -> None:
    await reservation.ready()


async def _device_names(plan: ClusterPlan, reservation: PlacementGroup, timeout: float) -> Mapping[int, str]:
    """Ask each machine what its reserved devices are called there: Ray may have kept others for somebody else."""
    names: dict[int, str] = {}
    for node in range(plan.nodes):
        devices = plan.devices(node)
        if not devices:
            continue
        strategy = PlacementGroupSchedulingStrategy(reservation, placement_group_bundle_index=node)
        asked = ray.remote(_visible_devices).options(
            num_cpus=0, num_gpus=len(devices), scheduling_strategy=strategy, max_retries=0
        )
        try:
            found = await asyncio.wait_for(_value(asked.remote()), timeout)
        except TimeoutError as error:
            message = f"Machine {node} of the Ray cluster did not name its devices within {timeout:g} s."
            raise RunError(message) from error
        names.update(zip(devices, found, strict=True))
    return names


async def _value(ref: ray.ObjectRef[list[str]]) -> list[str]:
    return await ref


def _visible_devices() -> list[str]:
    """Return the names of the devices of this task, ascending where they are numbers."""
    found = [str(name) for name in ray.get_runtime_context().get_accelerator_ids()["GPU"]]
    return sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
