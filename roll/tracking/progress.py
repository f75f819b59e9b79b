"""What a run tells a person while it works: the interface pipelines call, and its two plain implementations.

The life of a :class:`Progress`, as a pipeline sees it::

    with make_progress("auto") as progress:
        progress.start(total_steps=60, title="sokoban", config_summary="toy policy, 64 groups of 8")
        for step in range(1, 61):
            with progress.stage("rollout"):
                ...  # progress.rollout_progress(done, total, tokens) from time to time
            with progress.stage("update"):
                ...
            progress.step_done(step, metrics)
        progress.finish(RunSummary(...))

Steps count from 1: ``step_done(n, …)`` says that n steps are complete. ``eval_done(0, …)`` is the evaluation before the
first step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console

from roll.config.plain_text import plain_text
from roll.tracking.summary import RunSummary, print_summary
from roll.tracking.wording import count_steps, format_duration

STAGES = ("rollout", "log_probs", "advantages", "update", "eval", "checkpoint")
"""Stages every display knows, in the order of a step. Others are shown after them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode to look at, while it is new.

    Attributes:
        title: Environment or domain.
        turns: What the policy was asked and what it answered, turn by turn.
        score: Its score, ``None`` where it has none.
        outcome: How it ended, in a word or two.
    """

    title: str
    turns: tuple[tuple[str, str], ...]
    score: float | None = None
    outcome: str = ""


class Progress:
    """Shows nothing; the base of those that do. Times the stages, so a pipeline need not.

    All methods are to be called from one thread, :meth:`rollout_progress`, :meth:`sample`, :meth:`warning` and
    :meth:`alarm` from any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.on_stage: Callable[[str, float], None] | None = None
        """Told the name of each stage that is over, and its seconds."""
        self._stage_seconds: dict[str, float] = {}
        self._step_seconds: dict[str, float] = {}  # the same for the display, which starts anew at each step

    def start(
        self, total_steps: int, title: str, config_summary: str = "", *, first_step: int = 0, review: str = ""
    ) -> None:
        """Begin.

        Args:
            total_steps: Steps of the whole run; 0 for one that does not train.
            title: Name of the run.
            config_summary: A few words on model, algorithm and batch.
            first_step: Steps complete already, for a run that resumes.
            review: Command that opens the review of the run, where there is one.
        """

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show ``name`` as what the run does now, and add its wall time to :meth:`take_stage_seconds`."""
        begun = self.clock()
        self._stage_begins(name)
        try:
            yield
        finally:
            seconds = self.clock() - begun
            for sums in (self._stage_seconds, self._step_seconds):
                sums[name] = sums.get(name, 0.0) + seconds
            self._stage_ends(name)
            if self.on_stage is not None:
                self.on_stage(name, seconds)

    def take_stage_seconds(self) -> dict[str, float]:
        """Return the seconds per stage since the last call, and start again from zero."""
        seconds, self._stage_seconds = self._stage_seconds, {}
        return seconds

    def rollout_progress(self, done: int, total: int, tokens: int) -> None:
        """Say that ``done`` of ``total`` trajectories are complete and ``tokens`` were sampled in this rollout."""

    def sample(self, make: Callable[[], Sample]) -> None:
        """Offer an episode to look at; ``make`` is called by a display that wants it."""

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of training step ``step``."""

    def eval_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of the evaluation after ``step`` training steps (``val/success``, ``val/reward``)."""

    def warning(self, message: str) -> None:
        """Show something a person should know; the run goes on."""

    def alarm(self, message: str) -> None:
        """Show something that goes wrong and is said once: warnings, which may come at each step, do not cover it."""
        self.warning(message)

    def finish(self, summary: RunSummary) -> None:
        """End the display and show what came of the run. Nothing is shown after it."""
        self.close()

    def close(self) -> None:
        """Give the terminal back, however the run ended; may be called twice."""

    def _stage_begins(self, name: str) -> None:
        """Hook: a stage begins."""

    def _stage_ends(self, name: str) -> None:
        """Hook: a stage ended."""

    def _seconds_of_step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds per stage since the last step: as ``metrics`` says, else as timed here."""
        timed, self._step_seconds = self._step_seconds, {}
        return sort_stages(timed | stage_seconds(metrics))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self.close()


class NullProgress(Progress):
    """Shows nothing."""


class LineProgress(Progress):
    """One line per training step and per evaluation, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream
        self._total_steps = 0
        self._first_step = 0
        self._begun = self.clock()

    def start(
        self, total_steps: int, title: str, config_summary: str = "", *, first_step: int = 0, review: str = ""
    ) -> None:
        """Write the title."""
        self._total_steps, self._first_step, self._begun = total_steps, first_step, self.clock()
        resumed = f"resumed after step {first_step}" if first_step else ""
        steps = count_steps(total_steps) if total_steps else ""
        self._write("  ".join(part for part in (title, config_summary, steps, resumed) if part))

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line: step, reward, success, tokens/s, seconds per stage, ETA."""
        parts = [f"step {step:>{len(str(self._total_steps))}}/{self._total_steps}"]
        parts += _shown(metrics, "reward/mean", "reward", "{:.3f}")
        parts += _shown(metrics, "rollout/success", "success", "{:.1%}")
        parts += [] if "reward/mean" in metrics else _shown(metrics, "train/loss", "loss", "{:.4f}")
        parts += _shown(metrics, "throughput/tokens_per_second", "tokens/s", "{:,.0f}")
        parts += [f"{name} {value:.1f}s" for name, value in self._seconds_of_step(metrics).items()]
        done = step - self._first_step
        if done > 0 and step < self._total_steps:
            left = (self.clock() - self._begun) / done * (self._total_steps - step)
            parts.append(f"eta {format_duration(left)}")
        self._write("  ".join(parts))

    def eval_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line."""
        parts = [f"eval after step {step}"]
        parts += _shown(metrics, "val/success", "success", "{:.1%}")
        parts += _shown(metrics, "val/reward", "reward", "{:.3f}")
        parts += _shown(metrics, "val/loss", "loss", "{:.4f}")
        parts += [f"{name} {value:.1f}s" for name, value in self._seconds_of_step(metrics).items()]
        self._write("  ".join(parts))

    def warning(self, message: str) -> None:
        """Write one line."""
        self._write(f"warning: {plain_text(message)}")

    def finish(self, summary: RunSummary) -> None:
        """Write the summary."""
        # In a notebook rich would show every line as a box of HTML of its own.
        print_summary(summary, Console(file=self._stream or sys.stdout, force_jupyter=False))
        self.close()

    def _write(self, line: str) -> None:
        """Write one line at once: whoever follows a log should see the step when it is done."""
        stream = self._stream or sys.stdout
        stream.write(line + "\n")
        stream.flush()


def stage_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds per stage that ``metrics`` gives as ``time/<stage>``.

    ``time/step``, ``time/total`` and ``time/elapsed`` are sums, not stages, and left out.
    """
    prefix, sums = "time/", ("step", "total", "elapsed")
    found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return {name: float(value) for name, value in found.items() if name not in sums and "/" not in name}


def sort_stages(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the same numbers, known stages first in their order."""
    known = {name: seconds[name] for name in STAGES if name in seconds}
    return known | {name: value for name, value in seconds.items() if name not in known}


def _shown(metrics: Mapping[str, float], key: str, label: str, form: str) -> list[str]:
    """Return ``["label value"]``, or nothing where the metric is missing."""
    return [f"{label} {form.format(metrics[key])}"] if key in metrics else []
