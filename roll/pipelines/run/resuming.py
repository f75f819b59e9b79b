"""The checkpoint that a run continues from: found, whole, and of this very run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.config import ConfigError, PipelineConfig, Problem
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


def find_resumed(config: PipelineConfig, wanted: bool | str) -> Resumed | None:
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
    problems = [
        Problem(
            key,
            f"the run of {path} has {key}={state.get(key)!r}.",
            f"set it to that, or start a new run from those weights: pretrain={path}/hf.",
            now,
        )
        for key, now in identity(config).items()
        if state.get(key) != now
    ]
    if problems:
        raise ConfigError(problems)
    return Resumed(path, state, found.notes)


def identity(config: PipelineConfig) -> dict[str, Any]:
    """Return the keys that must not change when a run is resumed, because the outcome would belong to no run."""
    return {"seed": config.seed, "pretrain": config.pretrain, "rollout_batch_size": config.rollout_batch_size}
