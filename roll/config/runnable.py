"""What a valid configuration asks for that this version cannot do yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from roll.config.errors import Absent, ConfigError, Problem
from roll.config.run import RunConfig
from roll.config.strategies import availability_problem
from roll.config.user_modules import import_problems

_TRACKER_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "swanlab": "swanlab"}


def require_runnable(config: RunConfig) -> None:
    """Raise unless this version has the machinery for everything that ``config`` asks for.

    Call it once at the start of a pipeline: :func:`roll.config.load` accepts every key of the guide.

    Raises:
        ConfigError: Lists every part that is missing, and what to set instead.
    """
    problems = list(missing_problems(config))
    if problems:
        raise ConfigError(problems)


def missing_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield what :func:`require_runnable` raises."""
    for path, inner in config.inner_runs():
        yield from (replace(problem, path=f"{path}.{problem.path}") for problem in missing_problems(inner))
    yield from import_problems("strategy_modules", config.strategy_modules)
    for role, worker in config.roles():
        problem = availability_problem(
            worker.strategy_args.strategy_name, role=role, world_size=worker.workers, cluster=config.cluster
        )
        if problem is not None:
            yield problem
    if config.cluster == "ray" and find_spec("ray") is None:
        message = "the Python package ray is not installed."
        yield Absent("cluster", message, "pip install 'roll-rl[ray]', or set cluster=local.", config.cluster)
    for name in config.track_with:
        package = _TRACKER_PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            message = f"the tracker needs the Python package {package}, which is not installed."
            yield Absent("track_with", message, f"pip install {package}, or use track_with=tensorboard.", name)
