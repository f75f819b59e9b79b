"""The live dashboard: owns the terminal while a run works, and gives it back however the run ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from roll.config.plain_text import plain_text
from roll.tracking.captured_output import CapturedOutput
from roll.tracking.dashboard_state import RunState
from roll.tracking.dashboard_view import DashboardView, draw
from roll.tracking.notebook import NotebookProgress
from roll.tracking.progress import LineProgress, NullProgress, Progress, Sample
from roll.tracking.summary import RunSummary, print_summary

ProgressMode = Literal["auto", "live", "lines", "notebook", "none"]

_REFRESH_PER_SECOND = 2.0


def make_progress(mode: ProgressMode = "auto") -> Progress:
    """Return the display for ``mode``.

    ``auto`` is ``live`` on a terminal that can show it (a tty, ``TERM`` not ``dumb``, a Unicode encoding), else
    ``lines``.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode == "auto":
        mode = "live" if _can_show_live(sys.stdout) else "lines"
    makers: dict[str, Callable[[], Progress]] = {
        "live": LiveDashboard,
        "lines": LineProgress,
        "notebook": NotebookProgress,
        "none": NullProgress,
    }
    if mode not in makers:
        raise ValueError(f"progress mode {mode!r} is unknown; known are auto, {', '.join(makers)}")
    return makers[mode]()


def _can_show_live(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that a full-screen display works on."""
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and encoding.startswith("utf")


class LiveDashboard(Progress):
    """Full-screen dashboard on the terminal's second screen, so that it survives resizing and leaves no traces.

    A thread redraws it twice a second (about 10 ms each); the run only stores numbers. What the run writes to
    standard output and error meanwhile is kept (the last 200 lines): the latest error line is shown at the bottom, all
    of it is printed when the terminal is given back, and every alarm after it. ``breakpoint()`` gives the terminal back
    first.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.state = RunState()
        # An explicit file: without one rich writes to whatever sys.stdout is by then, which is _captured.
        self._console = console or Console(file=sys.stdout)
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._captured = CapturedOutput(self.warning)
        self._breakpoint_hook: Callable[..., Any] | None = None
        self._sampled = False
        self._alarms: list[str] = []

    def start(
        self, total_steps: int, title: str, config_summary: str = "", *, first_step: int = 0, review: str = ""
    ) -> None:
        """Take the terminal."""
        self.close()
        begun = self.clock()
        self.state = RunState(
            title, config_summary, total_steps, first_step=first_step, step=first_step, begun=begun, review=review
        )
        self._live = Live(
            get_renderable=self._view,
            console=self._console,
            screen=True,
            refresh_per_second=_REFRESH_PER_SECOND,
            redirect_stdout=False,  # done by _captured: on the second screen rich would lose the lines
            redirect_stderr=False,
        )
        self._captured.begin()
        atexit.register(self.close)  # for a run that ends without close()
        self._breakpoint_hook, sys.breakpointhook = sys.breakpointhook, self._break
        try:
            self._live.start(refresh=True)
        except BaseException:
            self.close()
            raise

    def rollout_progress(self, done: int, total: int, tokens: int) -> None:
        """Show it beside the stage that runs."""
        self.state.rollout, self.state.heard = (done, total, tokens), self.clock()

    def sample(self, make: Callable[[], Sample]) -> None:
        """Show the first of each rollout and each evaluation: long enough to be read."""
        if self._sampled:
            return
        self._sampled = True
        evaluates = self.state.stage is not None and self.state.stage[0] == "eval"
        when = f"evaluation after step {self.state.step}" if evaluates else f"step {self.state.step + 1}"
        self.state.sample = (when if self.state.total_steps else "", make())

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curves."""
        with self._lock:
            self.state.add_step(step, metrics, self._seconds_of_step(metrics))

    def eval_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a mark to the curves."""
        if not self.state.steps:
            self._step_seconds.clear()  # an evaluation before the first step belongs to no step
        with self._lock:
            self.state.add_validation(step, metrics)

    def warning(self, message: str) -> None:
        """Show it on the last line."""
        self.state.message = plain_text(message)

    def alarm(self, message: str) -> None:
        """Show it above the last line until others come, and print it when the terminal is given back."""
        self._alarms.append(plain_text(message))
        self.state.alarms = tuple(self._alarms[-2:])

    def finish(self, summary: RunSummary) -> None:
        """Give the terminal back, leave the last picture on it and print the summary."""
        shown = self._live is not None
        self.state.stage, self.state.review = None, ""  # the summary says how to open everything
        self.close()
        if shown:
            for line in draw(self.state, min(self._console.width, 120), 24, self.clock()):
                self._console.print(line, no_wrap=True, overflow="crop")
        print_summary(summary, self._console)

    def close(self) -> None:
        """Give the terminal back and print what was written meanwhile."""
        live, self._live = self._live, None
        if live is None:
            return
        atexit.unregister(self.close)
        try:
            live.stop()
        finally:
            if self._breakpoint_hook is not None:
                sys.breakpointhook, self._breakpoint_hook = self._breakpoint_hook, None
            self._captured.end()
            while self._alarms:
                self._console.print(Text(f"warning: {self._alarms.pop(0)}"), soft_wrap=True)

    def _view(self) -> DashboardView | str:
        """Return the picture; called by the drawing thread."""
        return _LockedView(self.state, self.clock, self._lock)

    def _stage_begins(self, name: str) -> None:
        """Show it as running."""
        self.state.rollout = None
        self._sampled = self._sampled and name not in ("rollout", "eval")
        self.state.stage = (name, self.clock())

    def _stage_ends(self, name: str) -> None:
        """Show that nothing runs."""
        self.state.stage = None

    def _break(self, *arguments: Any, **keywords: Any) -> Any:
        """Give the terminal back, then do what ``breakpoint()`` does."""
        hook = self._breakpoint_hook or sys.__breakpointhook__
        self.close()
        return hook(*arguments, **keywords)


class _LockedView(DashboardView):
    """The view, drawn while no number changes."""

    def __init__(self, state: RunState, clock: Callable[[], float], lock: threading.Lock) -> None:
        super().__init__(state, clock)
        self._lock = lock

    def __rich_console__(self, console: Console, options: Any) -> Any:
        """Yield the lines."""
        with self._lock:
            lines = list(super().__rich_console__(console, options))
        yield from lines
