"""The picture of a run: from a plain record of its state to lines of styled text for any terminal size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from roll.tracking.dashboard_charts import FRAME, VALIDATION_STYLE, charts, latest
from roll.tracking.dashboard_sample import LEAST_HEIGHT, sample_panel
from roll.tracking.dashboard_state import RunState
from roll.tracking.styled import styled
from roll.tracking.wording import format_duration

_STAGE_STYLES = {
    "rollout": "cyan",
    "log_probs": "blue",
    "advantages": "magenta",
    "update": "green",
    "eval": "yellow",
    "checkpoint": "bright_black",
}
_OTHER_STYLE = "white"
_SPINNER = "●○"
_SILENT_SECONDS = 15.0
_ROOMY = 20
"""Lines from which on parts stand apart."""
_ALARM_LINES = 4


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
    bars = [_stage_bar(state, width - 2), *_legend(state, width - 2, rows=2)]
    roomy = height >= _ROOMY
    gap = [Text()] if roomy else []
    review = _review(state, width) if roomy else []
    said = [*_alarms(state, width), _message(state.message)] if roomy else [_most_important(state)]
    tail = [_validation(state), *gap, *bars, *gap, _now(state, now), *review, *said]
    room = height - len(head) - len(gap) - len(tail)
    shown = charts(state, width, room) if room >= FRAME + 2 else [latest(state)]
    room -= len(shown)
    if state.sample is not None and room >= LEAST_HEIGHT:
        shown = [*shown, *sample_panel(*state.sample, width, room)]
    return [*head, *gap, *shown, *tail]


def _evaluation(state: RunState, width: int, now: float) -> list[Text]:
    """Return the picture of a run that only evaluates: it has no steps and no curves."""
    done, total, _ = state.rollout or (0, 0, 0)
    share = done / total if total else 0.0
    after = f" {share:4.0%}"
    bar = _bar([(share, "cyan"), (1 - share, "bright_black")], width - len(after) - 2, "━")
    return [_title(state, width, now), Text(" ") + bar.append(after), Text(), _now(state, now), _most_important(state)]


def _title(state: RunState, width: int, now: float) -> Text:
    """Return title, config summary and elapsed time."""
    elapsed = format_duration(now - state.begun)
    line = styled(" roll ", "bold black on cyan")
    line.append(f" {state.title}", style="bold")
    room = width - cell_len(line.plain) - len(elapsed) - 3
    summary = styled(f"  {state.config_summary}", "dim")
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
    line = styled(label, "bold")
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


def _validation(state: RunState) -> Text:
    """Return validation success at the start and now."""
    known = [(step, success) for step, success, _ in state.validations if math.isfinite(success)]
    line = styled(" ◆ ", VALIDATION_STYLE)
    line.append("validation success  ")
    if not known:
        return line.append_text(_first_evaluation(state))
    (_, before), (step, now) = known[0], known[-1]
    line.append(f"{before:.1%}", style="yellow")
    if len(known) > 1:
        line.append(" → ").append(f"{now:.1%}", style="bold green")
        line.append(f"  {100 * (now - before):+.1f} points", style="green" if now >= before else "red")
    return line.append(f"  (after step {step})", style="dim")


def _first_evaluation(state: RunState) -> Text:
    """Return how far the first evaluation is."""
    if state.stage is None or state.stage[0] != "eval":
        return styled("not yet evaluated", "dim")
    done, total, _ = state.rollout or (0, 0, 0)
    return styled("the first evaluation runs", "yellow").append(f"  {done:,}/{total:,}" if total else "", "dim")


def _stage_bar(state: RunState, width: int) -> Text:
    """Return the seconds per step as one stacked bar."""
    stages = state.mean_stages()
    total = sum(stages.values())
    if total <= 0:
        return styled(" " + "█" * width, "grey23")
    parts = [(seconds / total, _STAGE_STYLES.get(name, _OTHER_STYLE)) for name, seconds in stages.items()]
    return Text(" ") + _bar(parts, width, "█")


def _legend(state: RunState, width: int, rows: int) -> list[Text]:
    """Return what the colours of the stacked bar mean, on exactly ``rows`` lines."""
    stages = state.mean_stages()
    if not stages:
        return [styled(" seconds per stage: after the first step", "dim"), *[Text()] * (rows - 1)]
    total = sum(stages.values())
    entries = []
    for name, seconds in stages.items():
        entry = styled("■ ", _STAGE_STYLES.get(name, _OTHER_STYLE))
        entry.append(f"{name.replace('_', '-')} {seconds:.1f} s")
        entries.append(entry.append(f" {seconds / total:.0%}   " if total > 0 else "   ", style="dim"))
    entries.append(styled(f"= {total:.1f} s per step", "dim"))
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
        return styled(" ● ", "green" if over else "dim").append("done" if over else "waiting", style="dim")
    name, since = state.stage
    sign = _SPINNER[int(2 * now) % len(_SPINNER)]  # moves with every picture, so that one sees that it does
    line = styled(f" {sign} ", _STAGE_STYLES.get(name, _OTHER_STYLE))
    line.append(name.replace("_", "-"), style="bold default")
    line.append(f"  {now - since:.0f} s", style="dim")
    if name in ("rollout", "eval") and state.rollout is not None:
        done, total, tokens = state.rollout
        line.append(f"   {done:,}/{total:,} trajectories")
        if tokens and now > since:
            line.append(f"   {tokens / (now - since):,.0f} tokens/s", style="magenta")
        silent = now - max(since, state.heard)
        if silent >= _SILENT_SECONDS:
            line.append(f"   none finished for {silent:.0f} s", style="yellow")
        return line
    speeds = state.curves["tokens/s"]
    if speeds and math.isfinite(speeds[-1]):
        line.append(f"   {speeds[-1]:,.0f} tokens/s", style="magenta")
    return line


def _message(message: str) -> Text:
    """Return a warning on one line."""
    if not message:
        return Text()
    return styled(" ▲ ", "bold yellow").append(" ".join(message.split()), style="yellow")


def _most_important(state: RunState) -> Text:
    """Return the latest alarm or warning on one line."""
    return _message(state.alarms[-1] if state.alarms else state.message)


def _alarms(state: RunState, width: int) -> list[Text]:
    """Return the latest alarms on as many lines as there are for them: their words say what to do."""
    lines = []
    for alarm in state.alarms:
        most = _ALARM_LINES // len(state.alarms)
        first, *rest = textwrap.wrap(alarm, max(20, width - 4), max_lines=most, placeholder=" …") or [""]
        lines.append(styled(" ▲ ", "bold red").append(first, style="red"))
        lines += [styled(f"   {line}", "red") for line in rest]
    return lines


def _review(state: RunState, width: int) -> list[Text]:
    """Return the command that opens the review, to be copied; where it does not fit, an empty line."""
    label = " review  "
    if not state.review or len(label) + cell_len(state.review) > width:
        return [Text()]
    return [styled(label, "dim").append(state.review, "cyan")]
