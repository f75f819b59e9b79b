"""Training from Python, and the runs that were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.config import ConfigError, Problem, RunConfig, load
from roll.config.kinds import kind_for, runner
from roll.config.process import collector_waits, prepare_process
from roll.runs.stored import StoredRun
from roll.tracking.notebook import in_notebook

if TYPE_CHECKING:
    from omegaconf import DictConfig

_METRICS = "jsonl"


def train(
    config: str | Path | Mapping[str, Any] | DictConfig | RunConfig,
    /,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    **changes: Any,
) -> StoredRun:
    """Run a configuration to its end, in a script, a notebook, or inside a running event loop.

    Example:
        >>> run = roll.train("sokoban", max_steps=8)
        >>> run = roll.train("sokoban", actor_train={"training_args": {"learning_rate": 1e-4}})
        >>> run = roll.train("sokoban", overrides={"actor_train.training_args.learning_rate": 1e-4})
        >>> run = roll.train("my_configs/mine.yaml", overrides=["actor_train/strategy=deepspeed_zero2", "seed=1"])

    Args:
        config: The name of a configuration, the path of a YAML file, or a mapping; see :func:`roll.config.load`. Or
            what that returned.
        overrides: Further keys: a mapping whose keys may have dots, or texts as on the command line.
        changes: Further keys at the top level; a mapping is merged into its section.

    Returns:
        The run: its metrics, checkpoints and trajectories. It keeps ``metrics.jsonl`` whatever ``track_with`` says.

    Raises:
        ConfigError: Something is wrong; the error lists every problem with key path, value, origin and fix. Nothing
            has been written.
        RunError: The run cannot go on.
        KeyboardInterrupt: It was interrupted; its last complete step is saved, and the message says how to go on.
    """
    if isinstance(config, RunConfig):
        if overrides or changes:
            given = ", ".join([*overrides, *changes])
            problem = Problem("train", f"a checked configuration cannot be changed (given {given}).", _LOAD)
            raise ConfigError([problem])
        checked = config
    else:
        checked = load(config, overrides=overrides, **changes)
    checked = checked.each(_with_metrics)  # what a run of stages writes itself does not depend on it
    if checked.progress == "auto" and in_notebook():
        checked = _changed(checked, progress="notebook")
    prepare_process(checked.system_envs)
    with collector_waits() as imported:
        run = runner(kind_for(checked).run)
        imported()
        run(checked)
    return StoredRun.open(checked.output_dir)


_LOAD = "give them to roll.config.load, or the name or file of the configuration to roll.train."


def open_run(folder: str | Path) -> StoredRun:
    """Return the run in ``folder``, finished or not.

    Example:
        >>> roll.open_run("output/sokoban").curve("val/success")

    Raises:
        ConfigError: There is none; the message names those below it.
    """
    return StoredRun.open(folder)


def _with_metrics(config: RunConfig) -> RunConfig:
    """Let the run keep its metrics where they can be read again."""
    trackers = [config.track_with] if isinstance(config.track_with, str) else list(config.track_with)
    return config if _METRICS in trackers else _changed(config, track_with=[*trackers, _METRICS])


def _changed(config: RunConfig, **changes: Any) -> RunConfig:
    return config.model_copy(update=changes).from_origins(config.origins)
