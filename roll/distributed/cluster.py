"""Where a run's workers live: this process, or Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from roll.config import RunConfig, RunError
from roll.distributed.call_watch import CallWatch
from roll.distributed.local import LocalGroup
from roll.distributed.placement import ClusterPlan, plan_placement, startable
from roll.distributed.worker_group import WorkerGroup, WorkerSpec


class Cluster(Protocol):
    """Starts the roles of a run."""

    @property
    def plan(self) -> ClusterPlan:
        """Where every worker lives."""
        ...

    @property
    def watch(self) -> CallWatch:
        """What notices calls to workers that take too long."""
        ...

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """The workers that were started, by role."""
        ...

    async def start(self, role: str, spec: WorkerSpec) -> WorkerGroup:
        """Start the workers of a role of the plan.

        Raises:
            ValueError: If the run has no such role, or its workers are running.
            WorkerError: If a worker does not start in time, or dies meanwhile.
            Exception: What a constructor raised, with a note that says which worker.
        """
        ...

    def write_timeline(self, path: Path) -> None:
        """Write what every process did when, for ``chrome://tracing``, where that is known."""
        ...

    async def close(self) -> None:
        """End all workers."""
        ...


class LocalCluster:
    """Everything in this process.

    Args:
        plan: Roles and how many workers each has; machines and devices are not looked at.
        rpc_timeout: Seconds that a call may take.
        threads: Run methods that are no coroutines in threads: training does not stop sampling.
    """

    def __init__(self, plan: ClusterPlan, rpc_timeout: float, threads: bool = False) -> None:
        self.plan = plan
        self._threads = threads
        self._rpc_timeout = rpc_timeout
        self._groups: dict[str, LocalGroup] = {}
        self.watch = CallWatch()

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """The workers that were started, by role."""
        return self._groups

    async def start(self, role: str, spec: WorkerSpec) -> LocalGroup:
        """Make the workers of a role of the plan."""
        group = LocalGroup(
            startable(self.plan, role, self._groups),
            spec,
            rpc_timeout=self._rpc_timeout,
            threads=self._threads,
            watch=self.watch,
        )
        self._groups[role] = group
        return group

    def write_timeline(self, path: Path) -> None:
        """Nothing to write: one process has no timeline of its own."""

    async def close(self) -> None:
        """Let all workers close."""
        for group in self._groups.values():
            await group.close()
        self._groups = {}


@asynccontextmanager
async def open_cluster(config: RunConfig) -> AsyncIterator[Cluster]:
    """Open what ``config.cluster`` asks for, and end all workers afterwards.

    Raises:
        ConfigError: If the cluster is too small for the run, or a mapping is contradictory.
        RunError: If Ray is not installed, cannot be reached, or is busy.
    """
    cluster: Cluster
    if config.cluster == "ray":
        cluster = await _connect(config)
    else:
        cluster = LocalCluster(plan_placement(config), config.rpc_timeout, threads=config.overlaps)
    try:
        yield cluster
    finally:
        await cluster.close()


async def _connect(config: RunConfig) -> Cluster:
    try:
        from roll.distributed.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RunError(
            "cluster: ray needs the package ray. Fix: pip install 'roll-rl[ray]', or cluster=local."
        ) from error
    return await RayCluster.connect(config)
