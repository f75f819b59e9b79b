"""Live progress below the cell of a notebook: a few lines of text, drawn anew while the run works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from roll.config.plain_text import plain_text
from roll.tracking.progress import Progress
from roll.tracking.sparkline import sparkline
from roll.tracking.summary import RunSummary
from roll.tracking.wording import count_steps, format_duration

_REFRESH_SECONDS = 0.3
_BAR = 24
_WARNINGS = 3


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, whose displays can be drawn anew."""
    # Where it has not been imported nobody runs in it; to import it takes a while.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookProgress(Progress):
    """One output of a cell that is replaced by the next: no cell grows long, and a saved notebook keeps the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._handle: Any = None
        self._drawn = 0.0
        self._begun = self.clock()
        self._title = self._summary = self._stage = self._rollout = self._end = ""
        self._step = self._total = self._first = 0
        self._rewards: list[float] = []
        self._evaluations: dict[str, list[float]] = {"val/success": [], "val/reward": []}
        self._alarms: list[str] = []
        self._warnings: list[str] = []

    def start(
        self, total_steps: int, title: str, config_summary: str = "", *, first_step: int = 0, review: str = ""
    ) -> None:
        """Make the output."""
        from IPython.display import display

        self._title, self._summary, self._begun = title, config_summary, self.clock()
        self._step, self._first, self._total = first_step, first_step, total_steps
        self._handle = display(self._content(), raw=True, display_id=True)

    def rollout_progress(self, done: int, total: int, tokens: int) -> None:
        """Show how many trajectories are complete."""
        self._rollout = f" {done}/{total}"
        self._draw()

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the step and its reward."""
        self._step = step
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])
        self._draw(now=True)

    def eval_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the evaluation."""
        for name, values in self._evaluations.items():
            if name in metrics:
                values.append(metrics[name])
        self._draw(now=True)

    def warning(self, message: str) -> None:
        """Show it; of many the last ones."""
        self._warnings.append(plain_text(message))
        self._draw(now=True)

    def alarm(self, message: str) -> None:
        """Show it for good."""
        self._alarms.append(plain_text(message))
        self._draw(now=True)

    def finish(self, summary: RunSummary) -> None:
        """Show that it is over, and where everything is."""
        self._end = f"{count_steps(summary.steps)} in {format_duration(summary.seconds)}"
        if summary.checkpoint is not None:
            self._end += f", checkpoint {summary.checkpoint}"
        self._draw(now=True)

    def _stage_begins(self, name: str) -> None:
        self._stage, self._rollout = name, ""
        self._draw()

    def _draw(self, now: bool = False) -> None:
        """Replace the output, not much more often than anybody sees."""
        if self._handle is not None and (now or self.clock() - self._drawn > _REFRESH_SECONDS):
            self._drawn = self.clock()
            self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        # Plain text, which every front end shows as it is and none can take for HTML or a script.
        return {"text/plain": "\n".join(self._lines())}

    def _lines(self) -> list[str]:
        lines = ["  ".join(part for part in (plain_text(self._title), plain_text(self._summary)) if part)]
        if self._total:
            full = round(_BAR * self._step / self._total)
            doing = self._end or f"{self._stage}{self._rollout}{self._left()}"
            lines.append(f"step {self._step}/{self._total}  {'█' * full}{'░' * (_BAR - full)}  {doing}")
        elif self._end or self._stage:
            lines.append(self._end or f"{self._stage}{self._rollout}")
        if self._rewards:
            lines.append(_row("reward", self._rewards, "{:.3f}"))
        for name, form in (("val/success", "{:.1%}"), ("val/reward", "{:.3f}")):
            if self._evaluations[name]:
                lines.append(_row(name, self._evaluations[name], form))
        return lines + [f"warning: {text}" for text in (*self._alarms, *self._warnings[-_WARNINGS:])]

    def _left(self) -> str:
        done = self._step - self._first
        if not 0 < done or self._step >= self._total:
            return ""
        return f"  eta {format_duration((self.clock() - self._begun) / done * (self._total - self._step))}"


def _row(name: str, values: list[float], form: str) -> str:
    if len(values) == 1:
        return f"{name:<12}{form.format(values[0])}"
    return f"{name:<12}{form.format(values[0])} {sparkline(values, _BAR)} {form.format(values[-1])}"
