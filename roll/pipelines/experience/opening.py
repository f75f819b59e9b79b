"""The store that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from roll.common.registry import UnknownNameError
from roll.config import ConfigError, Problem
from roll.config.errors import Absent
from roll.config.experience import ExperienceConfig
from roll.distributed.ray_address import ADDRESS_VARIABLE, named_cluster
from roll.experience.adopt import adopt_run
from roll.experience.base import ExperienceStore, Reader
from roll.experience.folder import FolderStore
from roll.experience.priorities import priority_of
from roll.pipelines.run.checks import sentence
from roll.runs.layout import REPLAY, TRAJECTORIES

INSIDE_A_RUN = "experience"
"""Folder of the store that refers to what a run sampled, inside that run's own."""


def priority_problems(config: ExperienceConfig | None) -> Iterator[Problem]:
    """Yield what is wrong with the priority of a store; the modules that register some must have been imported."""
    if config is None:
        return
    try:
        priority_of(config.priority, config.priority_options)
    except UnknownNameError as error:
        yield Problem("experience.priority", sentence(error), "use a known name.", config.priority)
    except ValueError as error:
        yield Problem("experience.priority_options", sentence(error), "correct them.", config.priority_options)


def reader_of(config: ExperienceConfig) -> Reader:
    """Return who learns from a store, and how."""
    return Reader(
        config.reader,
        config.uses,
        config.max_age,
        priority_of(config.priority, config.priority_options),
        config.cooldown,
        config.fresh_share,
    )


def open_replay(config: ExperienceConfig, output_dir: Path, fresh_share: float | None) -> FolderStore:
    """Open the store of a run that learns from what it sampled before.

    Args:
        config: Its keys.
        output_dir: The folder of the run.
        fresh_share: The share of a step that was never learned from, in whole groups; ``None``: as it comes.
    """
    return FolderStore(output_dir / REPLAY, replace(reader_of(config), fresh_share=fresh_share))


def cluster_problems(config: ExperienceConfig | None) -> Iterator[Problem]:
    """Yield what a store in a Ray cluster lacks on this machine."""
    if config is None or config.type != "ray":
        return
    if find_spec("ray") is None:
        fix = "pip install 'roll-rl[ray]', or name a folder."
        yield Absent("experience.type", "the Python package ray is not installed.", fix, config.type)
    elif named_cluster() is None:
        message = f"its store is in a Ray cluster that both programs join, and {ADDRESS_VARIABLE} names none."
        fix = f"start one (ray start --head --port=6379), and set {ADDRESS_VARIABLE}=127.0.0.1:6379 for both programs."
        yield Absent("experience.type", message, fix, config.type)


def _in_ray(config: ExperienceConfig, reader: Reader) -> ExperienceStore:
    from roll.distributed.ray_store import RayStore

    folder = config.path
    assert config.name is not None and not isinstance(folder, str), "a store in Ray without a name is refused"
    if folder is not None and (folder / TRAJECTORIES).is_dir():
        message = "it is the folder of a run; a store in Ray keeps its groups in one of its own."
        fix = "name another one, or leave out experience.type and experience.name to learn from what the run left."
        raise ConfigError([Problem("experience.path", message, fix, str(folder))])
    return RayStore(config.name, reader, namespace=config.namespace, folder=folder)


def _in_database(address: str, reader: Reader) -> ExperienceStore:
    try:
        from roll.experience.sql import SqlStore
    except ImportError as error:
        raise ConfigError([Problem("experience.type", str(error), "install it, or name a folder.", "sql")]) from error
    return SqlStore(address, reader)


def open_store(config: ExperienceConfig, *, learns: bool, needs_baselines: bool) -> ExperienceStore:
    """Open a store, or make one.

    Args:
        config: Its keys.
        learns: Whether to learn from it, which what a finished run left is good for too.
        needs_baselines: Whether scores are compared with those of greedy members.

    Raises:
        ConfigError: What is there is not what the run needs.
        RunError: No Ray cluster answers.
        StoreError: It cannot be used.
    """
    reader = reader_of(config)
    if config.type == "ray":
        return _in_ray(config, reader)
    assert config.path is not None, "such a mode without a path is refused"
    if isinstance(config.path, str):
        return _in_database(config.path, reader)
    if learns and (config.path / TRAJECTORIES).is_dir():
        if needs_baselines:
            message = (
                f"{config.path} is the folder of a run, which does not keep the greedy members that it compares with."
            )
            fix = "use another estimator, or a store that mode: explore filled."
            raise ConfigError([Problem("adv_estimator", message, fix)])
        store = FolderStore(config.path / INSIDE_A_RUN, reader)
        adopt_run(store, config.path)
        store.finish()
        return store
    if config.path.exists() and not config.path.is_dir():
        fix = "name the folder of a store, or of a run."
        raise ConfigError([Problem("experience.path", "it is a file.", fix, str(config.path))])
    return FolderStore(config.path, reader)
