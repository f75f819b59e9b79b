"""What a run reports: trackers, display, the first and the last evaluation, the summary at the end."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.config import RunConfig
from roll.pipelines.run.command import python, resume_command
from roll.tracking import CompositeTracker, Progress, RunSummary, make_trackers
from roll.tracking.local import JsonlTracker, TensorboardTracker
from roll.tracking.traces import Span, open_traces


class RunLog:
    """Metrics of one run: sends them to trackers and to the display, and remembers the first and last evaluation.

    Args:
        config: Where and how to track.
        progress: The display.
        resumed: State of the checkpoint the run continues from, if any.
    """

    def __init__(self, config: RunConfig, progress: Progress, resumed: Mapping[str, Any] | None) -> None:
        self._every = config.logging_steps
        self._progress = progress
        self._begun = time.monotonic() - float((resumed or {}).get("elapsed", 0.0))
        self.before: dict[str, float] = dict((resumed or {}).get("before", {}))
        self.after: dict[str, float] = dict((resumed or {}).get("after", {}))
        self.evaluated = int((resumed or {}).get("evaluated", -1))
        self._step = int((resumed or {}).get("step", 0))
        self._is_open = True
        self.trackers: CompositeTracker = make_trackers(
            config.track_with,
            log_dir=config.logs_path,
            resume_step=None if resumed is None else int(resumed["step"]),
            tracker_kwargs=config.tracker_kwargs,
        )
        self.traces = open_traces(config.tracing, folder=config.logs_path, service=config.exp_name)
        progress.on_stage = self._stage if self.traces.is_on else None

    @property
    def elapsed(self) -> float:
        """Seconds of the run, earlier sittings included."""
        return time.monotonic() - self._begun

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a training step."""
        self._step = step
        record = {**metrics, **self._seconds()}
        self._progress.step_done(step, record)
        if step % self._every == 0:
            self.trackers.log(record, step)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log an evaluation after ``step`` training steps."""
        record = {**metrics, **self._seconds()}
        self._progress.eval_done(step, record)
        self.trackers.log(record, step)
        self.after, self.evaluated = dict(metrics), step
        self.before = self.before or dict(metrics)

    def alarm(self, text: str, step: int) -> None:
        """Show what goes wrong since a step, and hand it to the trackers that keep words."""
        self._progress.alarm(f"step {step}: {text}")
        self.trackers.log_note(text, step)

    def note(self, text: str) -> None:
        """Hand words to the trackers that keep them, as those of the newest step; after :meth:`close` to none."""
        if self._is_open:
            self.trackers.log_note(text, self._step)

    def close(self) -> None:
        """Close the trackers and the traces."""
        self._is_open = False
        self._progress.on_stage = None
        self.traces.close()
        self.trackers.close()

    def _stage(self, name: str, seconds: float) -> None:
        """Trace a stage of the run that is over."""
        now = time.time()
        self.traces.add([Span(self.traces.number, random.getrandbits(64) or 1, name, now - seconds, now)])

    def _seconds(self) -> dict[str, float]:
        """Return the seconds per stage since the last record, and those of the whole run."""
        stages = self._progress.take_stage_seconds()
        return {**{f"time/{name}": value for name, value in stages.items()}, "time/elapsed": self.elapsed}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember."""
        return {"elapsed": self.elapsed, "before": self.before, "after": self.after, "evaluated": self.evaluated}


def summarize(config: RunConfig, log: RunLog, steps: int, saved: Path | None) -> RunSummary:
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
        metrics=log.trackers.path(JsonlTracker),
        python=python(),
    )
