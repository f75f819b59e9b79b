"""What is wrong with one role: its strategy, its data, its devices."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.batch_checks import divisors_around
from roll.config.errors import Problem, choose_from
from roll.config.run import RunConfig
from roll.config.strategies import STRATEGIES, ability_for, strategies_for
from roll.config.worker import WorkerConfig


def name_problems(config: RunConfig, path: str, name: str) -> Iterator[Problem]:
    """Yield a strategy that nobody knows, unless a module that is yet to be found may register it."""
    if name not in STRATEGIES and not config.strategy_modules:
        fix = f"{choose_from(name, STRATEGIES)} One of your own needs its module in strategy_modules."
        yield Problem(path, "no strategy has this name.", fix, name)


def role_problems(config: RunConfig, role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield a strategy that cannot serve the role, data that are two things at once, devices that there are not."""
    name = worker.strategy_args.strategy_name
    yield from name_problems(config, f"{role}.strategy_args.strategy_name", name)
    if name in STRATEGIES and ability_for(role) not in worker.strategy_args.about.abilities:
        yield Problem(
            f"{role}.strategy_args.strategy_name",
            f"this strategy cannot serve {role}.",
            f"use one of {', '.join(strategies_for(role))}.",
            name,
        )
    if worker.data_args.prompt is not None and worker.data_args.messages is not None:
        yield Problem(
            f"{role}.data_args.messages",
            f"prompt ({worker.data_args.prompt!r}) and messages are both set, but a sample has only one of them.",
            f"remove {role}.data_args.prompt or {role}.data_args.messages (set it to null).",
            worker.data_args.messages,
        )
    scaling = worker.model_args.rope_scaling
    if scaling is not None:
        yield from scaling.problems(f"{role}.model_args.rope_scaling")
    yield from _device_problems(config, role, worker)


def _device_problems(config: RunConfig, role: str, worker: WorkerConfig) -> Iterator[Problem]:
    devices = worker.device_mapping
    if not devices:
        return
    path = f"{role}.device_mapping"
    if config.num_nodes is not None and max(devices) >= config.num_nodes * config.num_gpus_per_node:
        total = config.num_nodes * config.num_gpus_per_node
        yield Problem(
            path,
            f"device {max(devices)} does not exist: num_nodes {config.num_nodes} × num_gpus_per_node "
            f"{config.num_gpus_per_node} = {total} devices.",
            f"use ids below {total}, or raise num_nodes (null counts them itself).",
            devices,
        )
    if len(devices) % worker.num_gpus_per_worker:
        yield Problem(
            f"{role}.num_gpus_per_worker",
            f"{len(devices)} devices cannot be shared by workers of {worker.num_gpus_per_worker}.",
            f"use {' or '.join(map(str, divisors_around(len(devices), worker.num_gpus_per_worker)))}, "
            f"or change {path}.",
            worker.num_gpus_per_worker,
        )
    elif worker.world_size not in (None, len(devices) // worker.num_gpus_per_worker):
        count = len(devices) // worker.num_gpus_per_worker
        yield Problem(
            f"{role}.world_size",
            f"{len(devices)} devices with {worker.num_gpus_per_worker} per worker make {count} workers.",
            f"remove {role}.world_size, or set it to {count}.",
            worker.world_size,
        )
    split = worker.strategy_args.parallel_size(
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
    )
    if len(devices) % split:
        yield Problem(
            f"{role}.strategy_args.strategy_config",
            f"tensor × pipeline × context parallel size = {split} does not divide {len(devices)} devices.",
            f"choose sizes whose product is {' or '.join(map(str, divisors_around(len(devices), split)))}.",
            worker.strategy_args.strategy_config,
        )
