"""What a run remembers and reports: trackers, display, what is due when, resuming, the summary at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.config import ConfigError, PipelineConfig, Problem
from roll.pipelines.run import checkpoint
from roll.pipelines.run.command import python, resume_command
from roll.pipelines.run.folders import TRAJECTORIES
from roll.pipelines.silence import SilenceWatch
from roll.tracking import CompositeTracker, Progress, RunSummary, make_trackers
from roll.tracking.local import JsonlTracker, TensorboardTracker


class RunLog:
    """Metrics of one run: sends them to trackers and to the display, and remembers the first and last evaluation.

    Args:
        config: Where and how to track.
        progress: The display.
        resumed: State of the checkpoint the run continues from, if any.
    """

    def __init__(self, config: PipelineConfig, progress: Progress, resumed: Mapping[str, Any] | None) -> None:
        self._every = config.logging_steps
        self._progress = progress
        self._silence = SilenceWatch()
        self._begun = time.monotonic() - float((resumed or {}).get("elapsed", 0.0))
        self.before: dict[str, float] = dict((resumed or {}).get("before", {}))
        self.after: dict[str, float] = dict((resumed or {}).get("after", {}))
        self.evaluated = int((resumed or {}).get("evaluated", -1))
        self.trackers: CompositeTracker = make_trackers(
            config.track_with,
            log_dir=config.logs_path,
            resume_step=None if resumed is None else int(resumed["step"]),
            tracker_kwargs=config.tracker_kwargs,
        )

    @property
    def elapsed(self) -> float:
        """Seconds of the run, earlier sittings included."""
        return time.monotonic() - self._begun

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a training step."""
        record = {**metrics, **self._seconds()}
        self._progress.step_done(step, record)
        warning = self._silence.step(metrics)
        if warning is not None:
            self._progress.warning(warning)
        if step % self._every == 0:
            self.trackers.log(record, step)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log an evaluation after ``step`` training steps."""
        record = {**metrics, **self._seconds()}
        self._progress.eval_done(step, record)
        self.trackers.log(record, step)
        self.after, self.evaluated = dict(metrics), step
        self.before = self.before or dict(metrics)

    def _seconds(self) -> dict[str, float]:
        """Return the seconds per stage since the last record, and those of the whole run."""
        stages = self._progress.take_stage_seconds()
        return {**{f"time/{name}": value for name, value in stages.items()}, "time/elapsed": self.elapsed}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember."""
        return {"elapsed": self.elapsed, "before": self.before, "after": self.after, "evaluated": self.evaluated}


def is_due(step: int, every: int, last: int) -> bool:
    """Whether something that happens every ``every`` steps (0: never) and at the end happens after ``step``."""
    return every > 0 and (step % every == 0 or step == last)


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


def resume(config: PipelineConfig, wanted: bool | str) -> Resumed | None:
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


def summarize(config: PipelineConfig, log: RunLog, steps: int, saved: Path | None) -> RunSummary:
    """Return what is shown at the end of a run of ``steps`` steps, whose last checkpoint is ``saved``."""
    return RunSummary(
        title=config.exp_name,
        steps=steps,
        seconds=log.elapsed,
        before=log.before,
        after=log.after,
        checkpoint=saved,
        checkpoint_command=resume_command(config, max_steps=2 * steps),
        tensorboard=log.trackers.path(TensorboardTracker),
        trajectories=config.output_dir / TRAJECTORIES if config.trajectory_dump_steps else None,
        pages=config.render_path if log.evaluated >= 0 else None,
        metrics=log.trackers.path(JsonlTracker),
        python=python(),
    )


def checkpoint_state(config: PipelineConfig, log: RunLog, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything a checkpoint remembers beside the weights, as JSON."""
    return {**identity(config), **log.state(), **state}
