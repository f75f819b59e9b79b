"""Where every worker of a run lives: which machine, which devices. Pure arithmetic on the configuration."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Protocol

from roll.config import ConfigError, Problem, RunConfig
from roll.config.device_mapping import format_device_mapping
from roll.config.env_manager import EnvManagerConfig
from roll.config.process import process_defaults
from roll.config.worker import WorkerConfig

CPUS_PER_WORKER = 1
"""Logical processors that a worker reserves."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where one worker of a role lives.

    Attributes:
        rank: Its number within the role.
        node: The machine, counted from 0.
        devices: Global device ids, in the order of the mapping; empty for a worker on the CPU.
        local_rank: Its number among the workers of the role on the same machine.
        local_size: How many those are.
    """

    rank: int
    node: int
    devices: tuple[int, ...]
    local_rank: int
    local_size: int


@dataclass(frozen=True, slots=True)
class RolePlan:
    """The workers of one role.

    Attributes:
        role: The key path of the role in the configuration (``actor_train``, ``train_env_manager``, ``rewards.math``).
        workers: One place per rank, in order.
        env: Environment variables of its processes, beside those of the whole run.
        size_key: The configuration key that decides how many workers there are.
    """

    role: str
    workers: tuple[WorkerPlace, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    size_key: str = ""

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def devices(self) -> frozenset[int]:
        """Global ids of all devices of the role."""
        return frozenset(device for worker in self.workers for device in worker.devices)


@dataclass(frozen=True)
class ClusterPlan:
    """Where everything of a run lives.

    Attributes:
        roles: The roles that the run starts, by name.
        nodes: Machines.
        devices_per_node: Device ``d`` is on machine ``d // devices_per_node``.
        env: Environment variables of all processes.
    """

    roles: Mapping[str, RolePlan]
    nodes: int
    devices_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)

    def sharing(self, role: str) -> tuple[str, ...]:
        """Return the other roles that own some of the same devices: they must take turns."""
        mine = self.roles[role].devices
        return tuple(name for name, other in self.roles.items() if name != role and mine & other.devices)

    def cpus(self, node: int) -> int:
        """Return how many logical processors the workers of machine ``node`` reserve."""
        return CPUS_PER_WORKER * self._workers[node]

    def devices(self, node: int) -> tuple[int, ...]:
        """Return the global ids of the devices in use on machine ``node``, ascending."""
        return self._devices.get(node, ())

    @cached_property
    def _workers(self) -> Counter[int]:
        return Counter(worker.node for plan in self.roles.values() for worker in plan.workers)

    @cached_property
    def _devices(self) -> Mapping[int, tuple[int, ...]]:
        ids = sorted({device for plan in self.roles.values() for device in plan.devices})
        return {node: tuple(own) for node, own in groupby(ids, lambda device: device // self.devices_per_node)}


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What one machine of a cluster has free for this run.

    Attributes:
        name: Address or name, for messages.
        cpus: Logical processors.
        devices: Accelerators.
    """

    name: str
    cpus: float
    devices: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({_count(self.devices, 'device')}, {_count(int(self.cpus), 'CPU')})"


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What a cluster has.

    Attributes:
        nodes: Its machines.
    """

    nodes: tuple[NodeResources, ...]

    def __str__(self) -> str:
        return ", ".join(str(node) for node in self.nodes) or "no machine"


def plan_placement(config: RunConfig) -> ClusterPlan:
    """Return where every worker of a run lives.

    A role with a ``device_mapping`` has one worker per ``num_gpus_per_worker`` devices, taken in the order written. A
    role without has ``world_size`` workers on the CPU. Environments have as many workers as
    ``max_env_num_per_worker`` asks for (0: one). Workers on the CPU go round the machines in turn.

    Args:
        config: A checked configuration.

    Returns:
        The plan. Roles that the run does not use (a critic without ``gae``, a reference that no term needs) are not in
        it.

    Raises:
        ConfigError: If a worker's devices are on more than one machine, or a mapping does not make whole workers.
    """
    problems: list[Problem] = []
    roles: dict[str, RolePlan] = {}
    for name, worker in config.worker_roles():
        if worker.device_mapping:
            problems += _mapping_problems(name, worker, config.num_gpus_per_node)
            places = _device_places(worker, config.num_gpus_per_node)
        else:
            # Graders of one process gain nothing from being several.
            alone = config.cluster == "local" and name.startswith("rewards.")
            places = _cpu_places(1 if alone else worker.workers, config.nodes)
        roles[name] = RolePlan(name, places, dict(worker.system_envs), f"{name}.world_size")
    for name, manager in config.environment_roles():
        workers = 1 if config.cluster == "local" else environment_workers(manager)
        places = _cpu_places(workers, config.nodes)
        roles[name] = RolePlan(name, places, dict(manager.system_envs), f"{name}.max_env_num_per_worker")
    if getattr(config, "learns_elsewhere", False):
        roles["learner"] = RolePlan("learner", _cpu_places(1, config.nodes), {}, "data_plane")
    if problems:
        raise ConfigError(problems)
    return ClusterPlan(roles, config.nodes, config.num_gpus_per_node, process_defaults() | config.system_envs)


class Closable(Protocol):
    """Workers that may have ended."""

    @property
    def closed(self) -> bool:
        """Whether they have."""
        ...


def startable(plan: ClusterPlan, role: str, groups: Mapping[str, Closable]) -> RolePlan:
    """Return the plan of a role that may be started now.

    Raises:
        ValueError: If the run has no such role, or its workers are running.
    """
    if role not in plan.roles:
        raise ValueError(f"This run has no role {role!r}: it has {', '.join(plan.roles)}.")
    if role in groups and not groups[role].closed:
        raise ValueError(f"The workers of {role} are running: close that group before starting another.")
    return plan.roles[role]


def environment_workers(manager: EnvManagerConfig) -> int:
    """Return how many workers share the environments of ``manager``."""
    return -(-manager.environments // (manager.max_env_num_per_worker or manager.environments))


def check_fits(plan: ClusterPlan, resources: ClusterResources) -> None:
    """Refuse a plan that the cluster has no room for.

    Raises:
        ConfigError: It says what is needed, what is there, and which role to make smaller.
    """
    needs = [(len(plan.devices(node)), plan.cpus(node)) for node in range(plan.nodes)]
    if not _fit(needs, resources):
        raise ConfigError([_misfit(plan, needs, resources)])


def _mapping_problems(role: str, worker: WorkerConfig, devices_per_node: int) -> Iterator[Problem]:
    devices, size = worker.device_mapping or [], worker.num_gpus_per_worker
    key = f"{role}.num_gpus_per_worker"
    if len(devices) % size:
        yield Problem(key, f"{len(devices)} devices do not make whole workers of {size}.", "use a divisor.", size)
        return
    for group in _chunks(devices, size):
        nodes = sorted({device // devices_per_node for device in group})
        if len(nodes) > 1:
            message = (
                f"the worker with devices {format_device_mapping(group)} would be on machines "
                f"{', '.join(map(str, nodes))} ({_count(devices_per_node, 'device')} each), but it is one process."
            )
            fix = f"order {role}.device_mapping so that each {size} ids in a row are of one machine."
            yield Problem(key, message, fix, size)
            return


def _device_places(worker: WorkerConfig, devices_per_node: int) -> tuple[WorkerPlace, ...]:
    groups = list(_chunks(worker.device_mapping or [], worker.num_gpus_per_worker))
    return _places([(group[0] // devices_per_node, tuple(group)) for group in groups])


def _cpu_places(workers: int, nodes: int) -> tuple[WorkerPlace, ...]:
    return _places([(rank % nodes, ()) for rank in range(workers)])


def _places(homes: list[tuple[int, tuple[int, ...]]]) -> tuple[WorkerPlace, ...]:
    """Number workers, given machine and devices of each, within the role and within their machines."""
    sizes = Counter(node for node, _ in homes)
    before: Counter[int] = Counter()
    places = []
    for rank, (node, devices) in enumerate(homes):
        places.append(WorkerPlace(rank, node, devices, before[node], sizes[node]))
        before[node] += 1
    return tuple(places)


def _chunks(devices: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(devices) - size + 1, size):
        yield devices[start : start + size]


def _fit(needs: Sequence[tuple[int, int]], resources: ClusterResources) -> bool:
    """Tell whether every machine of a plan can have a machine of the cluster to itself.

    The needs with most devices go first, so that a machine with enough devices for one has enough for all that follow:
    for those only its processors count, and the best it can do is to spare the machines with many.

    Args:
        needs: Devices and processors of each machine of the plan.
        resources: What there is.
    """
    rooms = sorted(resources.nodes, key=lambda node: node.devices)
    cpus: list[float] = []
    for devices, processors in sorted(needs, reverse=True):
        while rooms and rooms[-1].devices >= devices:
            insort(cpus, rooms.pop().cpus)
        place = bisect_left(cpus, processors)
        if place == len(cpus):
            return False
        del cpus[place]
    return True


def _misfit(plan: ClusterPlan, needs: list[tuple[int, int]], resources: ClusterResources) -> Problem:
    """Return what is too big: devices before processors, since they are what a cluster is short of."""
    devices_fit = _fit([(devices, 0) for devices, _ in needs], resources)
    needed = ", ".join(
        f"machine {i} with {_count(devices, 'device')} and {_count(cpus, 'CPU')}"
        for i, (devices, cpus) in enumerate(needs)
    )
    message = f"the run needs {needed}. There is: {resources}."
    if plan.nodes > len(resources.nodes):
        missing = plan.nodes - len(resources.nodes)
        role = max(plan.roles.values(), key=lambda role: max(worker.node for worker in role.workers))
        key = f"{role.role}.device_mapping" if role.devices else "num_nodes"
        value = format_device_mapping(sorted(role.devices)) if role.devices else plan.nodes
        fix = f"start Ray on {_count(missing, 'more machine')} (ray start --address=…), or make {key} smaller."
        return Problem(key, message, fix, value)
    if not devices_fit:
        role = max(plan.roles.values(), key=lambda role: len(role.devices))
        key = f"{role.role}.device_mapping"
        free = max(node.devices for node in resources.nodes)
        fix = f"map {role.role} to at most {_count(free, 'device')} of each machine (num_gpus_per_node={max(free, 1)})"
        fix += ", or set it to null to run on CPUs." if not free else "."
        return Problem(key, message, fix, format_device_mapping(sorted(role.devices)))
    role = max(plan.roles.values(), key=lambda role: role.size)
    fix = f"start fewer workers of {role.role}, or give Ray more logical processors (ray start --num-cpus=…)."
    return Problem(role.size_key, f"{message} {role.role} has most of the workers, {role.size}.", fix)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
