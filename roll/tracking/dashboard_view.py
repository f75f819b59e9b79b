"""The picture of a run: from a plain record of its state to lines of styled text for any terminal size."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from roll.tracking.braille import braille_curve, dot_column, text_row
from roll.tracking.progress import sort_stages
from roll.tracking.wording import format_duration

WINDOW = 60
"""Steps a curve shows."""

_STAGE_STYLES = {
    "rollout": "cyan",
    "log_probs": "blue",
    "advantages": "magenta",
    "update": "green",
    "eval": "yellow",
    "checkpoint": "bright_black",
}
_OTHER_STYLE = "white"
_CURVES = {"reward": "cyan", "success": "green", "tokens/s": "magenta"}
_VALIDATION_STYLE = "bold yellow"


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
        steps: Step numbers of the curves, oldest first.
        curves: Values by curve name, aligned with ``steps``.
        validations: ``(step, success, reward)`` of each evaluation.
        stages: Seconds per stage of the latest steps, oldest first.
        stage: What runs now, and since when.
        rollout: Trajectories complete, trajectories in all, tokens sampled in the rollout that runs.
        message: The latest warning.
    """

    title: str = ""
    config_summary: str = ""
    total_steps: int = 0
    first_step: int = 0
    step: int = 0
    begun: float = 0.0
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    curves: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=WINDOW) for name in _CURVES})
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    stages: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=10))
    stage: tuple[str, float] | None = None
    rollout: tuple[int, int, int] | None = None
    message: str = ""

    def add_step(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Take in a training step and its seconds per stage."""
        self.step = step
        self.rollout = None
        self.steps.append(step)
        keys = {"reward": "reward/mean", "success": "rollout/success", "tokens/s": "throughput/tokens_per_second"}
        for name, key in keys.items():
            self.curves[name].append(float(metrics.get(key, math.nan)))
        self.stages.append(dict(seconds))

    def add_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation."""
        self.validations.append(
            (step, float(metrics.get("val/success", math.nan)), float(metrics.get("val/reward", math.nan)))
        )

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


class DashboardView:
    """Rich renderable of a :class:`RunState`, as high and wide as the console."""

    def __init__(self, state: RunState, clock: Callable[[], float]) -> None:
        self.state = state
        self.clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        height = options.height or console.height
        yield Text("\n").join(draw(self.state, options.max_width, height, self.clock()))


def draw(state: RunState, width: int, height: int, now: float) -> list[Text]:
    """Return at most ``height`` lines of at most ``width`` cells."""
    lines = _training(state, width, height, now) if state.total_steps else _evaluation(state, width, now)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _training(state: RunState, width: int, height: int, now: float) -> list[Text]:
    """Return the picture of a run that trains."""
    head = [_title(state, width, now), _step_bar(state, width, now)]
    tail = [_validation(state), _stage_bar(state, width - 2), *_legend(state, width - 2, rows=2), _now(state, now)]
    gaps = 4 if height >= 20 else 0
    rows = min(12, height - len(head) - len(tail) - gaps - 4)  # 4: frame and caption of the charts, the message
    charts = _charts(state, width, rows) if rows >= 2 else [_latest(state)]
    gap = [Text()] if gaps else []
    return [*head, *gap, *charts, *tail[:1], *gap, *tail[1:-1], *gap, *tail[-1:], _message(state)]


def _evaluation(state: RunState, width: int, now: float) -> list[Text]:
    """Return the picture of a run that only evaluates: it has no steps and no curves."""
    done, total, _ = state.rollout or (0, 0, 0)
    share = done / total if total else 0.0
    after = f" {share:4.0%}"
    bar = _bar([(share, "cyan"), (1 - share, "bright_black")], width - len(after) - 2, "━")
    return [_title(state, width, now), Text(" ") + bar.append(after), Text(), _now(state, now), _message(state)]


def _styled(text: str, style: str) -> Text:
    """Return text whose style ends with it: the style of ``Text(text, style)`` would pass to what is appended."""
    return Text().append(text, style)


def _title(state: RunState, width: int, now: float) -> Text:
    """Return title, config summary and elapsed time."""
    elapsed = format_duration(now - state.begun)
    line = _styled(" roll ", style="bold black on cyan")
    line.append(f" {state.title}", style="bold")
    room = width - cell_len(line.plain) - len(elapsed) - 3
    summary = _styled(f"  {state.config_summary}", style="dim")
    summary.truncate(max(0, room), overflow="ellipsis")
    line.append_text(summary)
    line.append(" " * max(1, width - cell_len(line.plain) - len(elapsed) - 1))
    return line.append(elapsed, style="dim")


def _step_bar(state: RunState, width: int, now: float) -> Text:
    """Return the bar of steps with the time left."""
    left = state.seconds_left(now)
    over = state.step >= state.total_steps > 0
    eta = "done" if over else f"eta {format_duration(left)}" if left is not None else "eta –"
    label = f" step {state.step}/{state.total_steps} "
    share = state.step / state.total_steps if state.total_steps else 0.0
    after = f" {share:4.0%}  {eta:<11}"
    line = _styled(label, style="bold")
    line.append_text(_bar([(share, "cyan"), (1 - share, "bright_black")], width - len(label) - len(after) - 1, "━"))
    return line.append(after)


def _bar(parts: Iterable[tuple[float, str]], width: int, character: str) -> Text:
    """Return a bar of ``width`` cells whose parts have shares that sum to 1; rounding never changes the width."""
    line, total, drawn = Text(), 0.0, 0
    for share, style in parts:
        total += share
        cells = max(0, min(width, round(total * width)) - drawn)
        line.append(character * cells, style=style)
        drawn += cells
    return line


def _charts(state: RunState, width: int, rows: int) -> list[Text]:
    """Return the charts side by side: reward and success, in a wide terminal also tokens/s."""
    names = ["reward", "success"] + (["tokens/s"] if width >= 110 else [])
    each = width // len(names)
    widths = [each] * (len(names) - 1) + [width - each * (len(names) - 1)]
    blocks = [_chart(state, name, size, rows) for name, size in zip(names, widths, strict=True)]
    return [Text().join(parts) for parts in zip(*blocks, strict=True)]


def _chart(state: RunState, name: str, width: int, rows: int) -> list[Text]:
    """Return one framed curve with its latest value: ``rows + 3`` lines of ``width`` cells."""
    values = list(state.curves[name])
    finite = [value for value in values if math.isfinite(value)]
    marks = {"success": 1, "reward": 2}.get(name)
    first = state.steps[0] if state.steps else 0
    shown = [(entry[0], entry[marks]) for entry in state.validations if entry[0] >= first - 1] if marks else []
    shown = [(step, value) for step, value in shown if math.isfinite(value)]
    low, high = _range([*finite, *(value for _, value in shown)], name)
    form = _form(name)
    label_width = max(len(form(low)), len(form(high)))
    plot = width - label_width - 5
    slots = max(2, min(WINDOW, state.total_steps or WINDOW))
    lines = [_styled(line, style=_CURVES[name]) for line in braille_curve(values, plot, rows, low, high, slots)]
    for step, value in shown:
        cell = dot_column(max(0, step - max(1, first)), plot, slots) // 2
        line = lines[text_row(value, rows, low, high)]
        lines[text_row(value, rows, low, high)] = line[:cell] + _styled("◆", style=_VALIDATION_STYLE) + line[cell + 1 :]
    caption = _styled(f"{form(finite[-1]) if finite else '–'} ", style="bold")
    if len(finite) > 1:
        caption.append(f" mean of last {min(10, len(finite))}: {form(sum(finite[-10:]) / len(finite[-10:]))}", "dim")
    caption.truncate(width - 4, overflow="ellipsis", pad=True)
    label = f"─ {name} "
    framed = [_styled(f"╭{label}{'─' * (width - 2 - len(label))}╮", style="bright_black")]
    framed[0].stylize("bold " + _CURVES[name], 3, 3 + len(name))
    framed.append(_framed(caption))
    for row, line in enumerate(lines):
        text = form(high) if row == 0 else form(low) if row == rows - 1 else ""
        framed.append(_framed(_styled(f"{text:>{label_width}} ", style="dim") + line))
    return [*framed, _styled(f"╰{'─' * (width - 2)}╯", style="bright_black")]


def _framed(line: Text) -> Text:
    """Return the line between the sides of a frame."""
    return _styled("│ ", style="bright_black") + line + _styled(" │", style="bright_black")


def _range(values: list[float], name: str) -> tuple[float, float]:
    """Return the edges of a chart: the values with a little room, never so narrow that noise fills the chart."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if name == "tokens/s":
        return 0.0, max(1.0, high * 1.1)
    room = max(0.05 * (high - low), (0.1 - (high - low)) / 2)
    low, high = low - room, high + room
    return (max(0.0, low), min(1.0, high)) if name == "success" else (low, high)


def _form(name: str) -> Callable[[float], str]:
    """Return how a curve's values are written."""
    forms = {"success": "{:.1%}", "tokens/s": "{:,.0f}"}
    return forms.get(name, "{:.2f}").format


def _latest(state: RunState) -> Text:
    """Return the latest values on one line, where there is no room for charts."""
    line = Text(" ")
    for name, style in _CURVES.items():
        values = state.curves[name]
        if values and math.isfinite(values[-1]):
            line.append(f"{name} ").append(f"{_form(name)(values[-1])}   ", style=f"bold {style}")
    return line


def _validation(state: RunState) -> Text:
    """Return validation success at the start and now."""
    known = [(step, success) for step, success, _ in state.validations if math.isfinite(success)]
    line = _styled(" ◆ ", style=_VALIDATION_STYLE)
    line.append("validation success  ")
    if not known:
        return line.append("not yet evaluated", style="dim")
    (_, before), (step, now) = known[0], known[-1]
    line.append(f"{before:.1%}", style="yellow")
    if len(known) > 1:
        line.append(" → ").append(f"{now:.1%}", style="bold green")
        line.append(f"  {100 * (now - before):+.1f} points", style="green" if now >= before else "red")
    return line.append(f"  (after step {step})", style="dim")


def _stage_bar(state: RunState, width: int) -> Text:
    """Return the seconds per step as one stacked bar."""
    stages = state.mean_stages()
    total = sum(stages.values())
    if total <= 0:
        return _styled(" " + "█" * width, style="grey23")
    parts = [(seconds / total, _STAGE_STYLES.get(name, _OTHER_STYLE)) for name, seconds in stages.items()]
    return Text(" ") + _bar(parts, width, "█")


def _legend(state: RunState, width: int, rows: int) -> list[Text]:
    """Return what the colours of the stacked bar mean, on exactly ``rows`` lines."""
    stages = state.mean_stages()
    if not stages:
        return [_styled(" seconds per stage: after the first step", style="dim"), *[Text()] * (rows - 1)]
    total = sum(stages.values())
    entries = []
    for name, seconds in stages.items():
        entry = _styled("■ ", style=_STAGE_STYLES.get(name, _OTHER_STYLE))
        entry.append(f"{name.replace('_', '-')} {seconds:.1f} s")
        entries.append(entry.append(f" {seconds / total:.0%}   " if total > 0 else "   ", style="dim"))
    entries.append(_styled(f"= {total:.1f} s per step", style="dim"))
    lines = [Text(" ")]
    for entry in entries:
        if cell_len(lines[-1].plain) + cell_len(entry.plain.rstrip()) > width and len(lines) < rows:
            lines.append(Text(" "))
        lines[-1].append_text(entry)
    return [*lines, *[Text()] * (rows - len(lines))]


def _now(state: RunState, now: float) -> Text:
    """Return what the run does at this moment."""
    if state.stage is None:
        over = state.step >= state.total_steps > 0
        return _styled(" ● ", style="green" if over else "dim").append("done" if over else "waiting", style="dim")
    name, since = state.stage
    line = _styled(" ● ", style=_STAGE_STYLES.get(name, _OTHER_STYLE))
    line.append(name.replace("_", "-"), style="bold default")
    line.append(f"  {now - since:.0f} s", style="dim")
    if name in ("rollout", "eval") and state.rollout is not None:
        done, total, tokens = state.rollout
        line.append(f"   {done:,}/{total:,} trajectories")
        if tokens and now > since:
            line.append(f"   {tokens / (now - since):,.0f} tokens/s", style="magenta")
        return line
    speeds = state.curves["tokens/s"]
    if speeds and math.isfinite(speeds[-1]):
        line.append(f"   {speeds[-1]:,.0f} tokens/s", style="magenta")
    return line


def _message(state: RunState) -> Text:
    """Return the latest warning on one line."""
    if not state.message:
        return Text()
    return _styled(" ▲ ", style="bold yellow").append(" ".join(state.message.split()), style="yellow")
