"""Ray for runs of which a role needs processes and that do not say `cluster`."""

from __future__ import annotations

from typing import TypeVar

from roll.config.run import RunConfig
from roll.config.strategies import takes_processes

Config = TypeVar("Config", bound=RunConfig)


def with_processes(config: Config) -> tuple[Config, str | None]:
    """Return a run with ``cluster: ray`` if one of its roles needs processes of its own, and a sentence that says so.

    Args:
        config: The run. One that says ``cluster`` itself stays as it is.
    """
    if "cluster" in config.model_fields_set:
        return config, None
    for name, worker in config.worker_roles():
        if worker.workers > 1 and takes_processes(worker.strategy_args.strategy_name, name):
            said = f"cluster: it is ray, since the {worker.workers} workers of {name} need a process each"
            return config.model_copy(update={"cluster": "ray"}), f"{said}; cluster: local is one process."
    return config, None
