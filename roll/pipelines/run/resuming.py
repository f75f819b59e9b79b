"""The checkpoint that a run continues from: found, whole, and of this very run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.config import ConfigError, Problem, RunConfig
from roll.pipelines.run import checkpoint


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a run continues from.

    Attributes:
        path: Its folder.
        state: What it remembers beside the weights.
        notes: What a person should know about it.
    """

    path: Path
    state: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def step(self) -> int:
        """Steps that it has behind it."""
        return int(self.state["step"])


def find_resumed(config: RunConfig, wanted: bool | str) -> Resumed | None:
    """Return the checkpoint to continue from, if any.

    Args:
        config: The run.
        wanted: ``resume_from_checkpoint``.

    Raises:
        ConfigError: If a checkpoint was named that is not there, is damaged, or belongs to a run with another seed or
            policy.
    """
    try:
        found = checkpoint.find(wanted, config.checkpoint_path)
        if found is None:
            return None
        path, state = found.path, checkpoint.load_state(found.path)
    except checkpoint.CheckpointError as error:
        raise ConfigError([Problem("resume_from_checkpoint", str(error), error.fix, wanted)]) from error
    if state.get(checkpoint.CONTENTS) == "weights":
        fix = f"begin a new run with them, pretrain={path}/hf; checkpoint_config.contents: all saves what is missing."
        raise ConfigError([Problem("resume_from_checkpoint", f"{path} has weights alone.", fix, wanted)])
    problems = [
        Problem(
            key,
            f"the run of {path} has {key}={state.get(key)!r}.",
            f"set it to that, or start a new run{_from_weights(path)}.",
            now,
        )
        for key, now in config.identity().items()
        if state.get(key) != now
    ]
    if problems:
        raise ConfigError(problems)
    return Resumed(path, state, found.notes)


def _from_weights(path: Path) -> str:
    """Say how to begin with the weights of a checkpoint, where it has a model in Hugging Face format."""
    return f" from those weights: pretrain={path}/hf" if (path / "hf").is_dir() else ""
