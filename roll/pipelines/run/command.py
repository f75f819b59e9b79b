"""The command line that continues a run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from omegaconf import OmegaConf

from roll.config import RunConfig
from roll.config.dialects import other_names
from roll.config.shipped import shipped_configs

_REPLACED = ("output_dir", "resume_from_checkpoint")


def resume_command(config: RunConfig, max_steps: int | None = None) -> str | None:
    """Return the command that continues this run, with everything that was given on its own command line.

    Args:
        config: The configuration of the run.
        max_steps: Steps to train to; ``None`` for as many as were asked for.

    Returns:
        A line for the shell, or ``None`` where the run was started from Python and not by a command.
    """
    if max_steps is not None and config.origins.output_dir is not None:
        return None  # of a stage, which others followed
    # Not imported for its own sake: a run that was started by a command line was started by Hydra.
    if "hydra" not in sys.modules:
        return None
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized():
        return None
    hydra = HydraConfig.get()
    words = [*config.origins.program]
    if not words:
        words = [python(), sys.argv[0], "--config-name", str(hydra.job.config_name)]
        words += _config_folders(hydra.runtime.config_sources)
    replaced = (*_REPLACED, "max_steps") if max_steps is not None else _REPLACED
    changed = {name for key in replaced for name in (key, *other_names(key))}
    overrides = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    given = [str(override).lstrip("+") for override in overrides or ()]
    words += [override for override in given if override.partition("=")[0] not in changed]
    words += [f"output_dir={shown(config.origins.output_dir or config.output_dir)}"]
    if hydra.mode == RunMode.MULTIRUN:
        words += _moved_folders(config)
    words += ["resume_from_checkpoint=true"]
    words += [] if max_steps is None else [f"max_steps={max_steps}"]
    return shlex.join(words)


def python() -> str:
    """Return how to call this interpreter: ``python`` where that is it, else its path."""
    found = shutil.which("python")
    return "python" if found and Path(found) == Path(sys.executable) else str(shown(Path(sys.executable)))


def review_command(config: RunConfig) -> str:
    """Return the line for the shell that opens the review of a run."""
    program = Path(sys.executable).with_name("roll")
    found = shutil.which("roll")
    words = ["roll"] if found and Path(found) == program else [python(), "-m", "roll"]
    return shlex.join([*words, "view", str(shown(config.output_dir))])


def shown(path: Path) -> Path:
    """Return the path relative to the working directory where it lies below that."""
    absolute, here = path.absolute(), Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def _config_folders(sources: object) -> list[str]:
    """Return the options that name folders other than the script's own."""
    words: list[str] = []
    own = ((Path(sys.argv[0]).parent / "config").resolve(), shipped_configs())
    for source in sources:  # type: ignore[attr-defined]
        if source.provider == "command-line":
            words += ["--config-dir", source.path]
        if source.provider == "main" and Path(source.path) not in own:
            words += ["--config-path", source.path]
    return words


def _moved_folders(config: RunConfig) -> list[str]:
    """Return the folders that a sweep gave to this job alone and that do not follow from ``output_dir``."""
    named = {
        "logging_dir": config.logging_dir,
        "render_save_dir": config.render_save_dir,
        "checkpoint_config.output_dir": config.checkpoint_config.output_dir,
    }
    return [f"{key}={path}" for key, path in named.items() if path is not None]
