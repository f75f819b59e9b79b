"""What the dashboard knows of a run: a plain record, and the curves it keeps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.tracking.progress import Sample, sort_stages

WINDOW = 60
"""Steps a curve shows."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of the dashboard.

    Attributes:
        name: What stands above it.
        metrics: Metrics that it shows: the first of these that a step has.
        style: Its colour.
        form: How a value is written.
        least: The least difference that fills the chart, so that noise does not.
        from_zero: Whether the chart begins at zero.
        validation: Which number of an evaluation is marked in it: 1 for success, 2 for reward.
    """

    name: str
    metrics: tuple[str, ...]
    style: str
    form: str = "{:.2f}"
    least: float = 0.1
    from_zero: bool = False
    validation: int | None = None


CURVES = (
    Curve("reward", ("reward/mean",), "cyan", validation=2),
    Curve("success", ("rollout/success",), "green", "{:.1%}", validation=1),
    Curve("tokens/s", ("throughput/tokens_per_second",), "magenta", "{:,.0f}", least=1.0, from_zero=True),
    Curve("entropy", ("train/policy/entropy",), "blue", "{:.3f}"),
    Curve("KL", ("kl/reference", "train/policy/approx_kl"), "red", "{:.4f}", least=0.001, from_zero=True),
    Curve("response tokens", ("rollout/response_tokens",), "bright_blue", "{:,.1f}", least=2.0),
    Curve("loss", ("train/loss",), "bright_magenta", "{:.3f}"),
)
"""In the order in which they are given room."""


@dataclass(slots=True)
class RunState:
    """What the dashboard knows of a run. Times are in seconds of one monotonic clock.

    Attributes:
        title: Name of the run.
        config_summary: A few words on model, algorithm and batch.
        total_steps: Steps of the whole run.
        first_step: Steps that were complete when this process began.
        step: Steps complete.
        begun: When the run began.
        review: Command that opens the review of the run, where there is one.
        steps: Step numbers of the curves, oldest first.
        curves: Values by curve name, aligned with ``steps``.
        validations: ``(step, success, reward)`` of each evaluation.
        stages: Seconds per stage of the latest steps, oldest first.
        stage: What runs now, and since when.
        rollout: Trajectories complete, trajectories in all, tokens sampled in the rollout that runs.
        heard: When the last trajectory was complete.
        sample: What was asked and answered, with the step it is of.
        message: The latest warning.
        alarms: The latest two alarms, oldest first; a new tuple each time, since another thread draws them.
    """

    title: str = ""
    config_summary: str = ""
    total_steps: int = 0
    first_step: int = 0
    step: int = 0
    begun: float = 0.0
    review: str = ""
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    curves: dict[str, deque[float]] = field(
        default_factory=lambda: {curve.name: deque(maxlen=WINDOW) for curve in CURVES}
    )
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    stages: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=10))
    stage: tuple[str, float] | None = None
    rollout: tuple[int, int, int] | None = None
    heard: float = 0.0
    sample: tuple[str, Sample] | None = None
    message: str = ""
    alarms: tuple[str, ...] = ()

    def add_step(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Take in a training step and its seconds per stage."""
        self.step = step
        self.rollout = None
        self.steps.append(step)
        for curve in CURVES:
            value = next((metrics[name] for name in curve.metrics if name in metrics), math.nan)
            self.curves[curve.name].append(float(value))
        self.stages.append(dict(seconds))

    def add_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation."""
        self.validations.append(
            (step, float(metrics.get("val/success", math.nan)), float(metrics.get("val/reward", math.nan)))
        )

    def shown_curves(self, most: int) -> list[Curve]:
        """Return the curves to give room to: those that have values, and before the first step the first of all."""
        known = [curve for curve in CURVES if any(math.isfinite(value) for value in self.curves[curve.name])]
        return (known or list(CURVES))[:most]

    def mean_stages(self) -> dict[str, float]:
        """Return the mean seconds per stage and step; what runs every few steps counts with its share."""
        names = {name for seconds in self.stages for name in seconds}
        return sort_stages(
            {name: sum(seconds.get(name, 0.0) for seconds in self.stages) / len(self.stages) for name in sorted(names)}
        )

    def seconds_left(self, now: float) -> float | None:
        """Return the expected seconds to the end, ``None`` before the first step of this process is complete."""
        done = self.step - self.first_step
        return (now - self.begun) / done * (self.total_steps - self.step) if done > 0 else None
