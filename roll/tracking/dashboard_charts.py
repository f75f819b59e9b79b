"""The charts of the dashboard: framed curves, as many as a terminal has room for."""

from __future__ import annotations

import math

from rich.text import Text

from roll.tracking.braille import braille_curve, dot_column, text_row
from roll.tracking.dashboard_state import WINDOW, Curve, RunState
from roll.tracking.styled import framed, styled

VALIDATION_STYLE = "bold yellow"
FRAME = 3
"""Lines of a chart beside its curve: the frame and what is written below it."""

_WIDE = 110
_MOST_CURVES = 6
_MOST_ROWS = 12
_LEAST_ROWS = 5
_LEAST_BESIDE = 8


def charts(state: RunState, width: int, height: int) -> list[Text]:
    """Return the charts, side by side and in one row or several, in at most ``height`` lines of ``width`` cells.

    Several rows leave a good third of the height to what comes below them.
    """
    columns = 3 if width >= _WIDE else 2
    shown = state.shown_curves(_MOST_CURVES)
    count = max(1, min(-(-len(shown) // columns), (height - _LEAST_BESIDE) // (_LEAST_ROWS + FRAME)))
    room = height if count == 1 else min(height - _LEAST_BESIDE, height * 3 // 5)
    rows = min(_MOST_ROWS, room // count - FRAME)
    lines: list[Text] = []
    for row in range(count):
        lines += _row(state, shown[row * columns : (row + 1) * columns], width, rows)
    return lines


def latest(state: RunState) -> Text:
    """Return the latest values on one line, where there is no room for charts."""
    line = Text(" ")
    for curve in state.shown_curves(most=3):
        values = state.curves[curve.name]
        if values and math.isfinite(values[-1]):
            line.append(f"{curve.name} ").append(f"{curve.form.format(values[-1])}   ", style=f"bold {curve.style}")
    return line


def _row(state: RunState, curves: list[Curve], width: int, rows: int) -> list[Text]:
    """Return charts side by side."""
    each = width // len(curves)
    widths = [each] * (len(curves) - 1) + [width - each * (len(curves) - 1)]
    blocks = [_chart(state, curve, size, rows) for curve, size in zip(curves, widths, strict=True)]
    return [Text().join(parts) for parts in zip(*blocks, strict=True)]


def _chart(state: RunState, curve: Curve, width: int, rows: int) -> list[Text]:
    """Return one framed curve with its latest value: ``rows + 3`` lines of ``width`` cells."""
    form = curve.form.format
    values = list(state.curves[curve.name])
    finite = [value for value in values if math.isfinite(value)]
    first = state.steps[0] if state.steps else 0
    marks = _marks(state, curve, first)
    low, high = _range([*finite, *(value for _, value in marks)], curve)
    label_width = max(len(form(low)), len(form(high)))
    plot = max(1, width - label_width - 5)
    slots = max(2, min(WINDOW, state.total_steps or WINDOW))
    lines = [styled(line, curve.style) for line in braille_curve(values, plot, rows, low, high, slots)]
    for step, value in marks:
        cell = dot_column(max(0, step - max(1, first)), plot, slots) // 2
        line = lines[text_row(value, rows, low, high)]
        lines[text_row(value, rows, low, high)] = line[:cell] + styled("◆", VALIDATION_STYLE) + line[cell + 1 :]
    caption = styled(f"{form(finite[-1]) if finite else '–'} ", "bold")
    if len(finite) > 1:
        caption.append(f" mean of last {min(10, len(finite))}: {form(sum(finite[-10:]) / len(finite[-10:]))}", "dim")
    body = [caption]
    for row, line in enumerate(lines):
        text = form(high) if row == 0 else form(low) if row == rows - 1 else ""
        body.append(styled(f"{text:>{label_width}} ", "dim") + line)
    return framed(body, width, Text(curve.name, f"bold {curve.style}"))


def _marks(state: RunState, curve: Curve, first: int) -> list[tuple[int, float]]:
    """Return steps and values of the evaluations that are marked in a curve that begins with step ``first``."""
    if curve.validation is None:
        return []
    values = [(entry[0], entry[curve.validation]) for entry in state.validations if entry[0] >= first - 1]
    return [(step, value) for step, value in values if math.isfinite(value)]


def _range(values: list[float], curve: Curve) -> tuple[float, float]:
    """Return the edges of a chart: the values with a little room, never so narrow that noise fills the chart."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if curve.from_zero and low >= 0:
        return 0.0, max(curve.least, high * 1.1)
    room = max(0.05 * (high - low), (curve.least - (high - low)) / 2)
    low, high = low - room, high + room
    return (max(0.0, low), min(1.0, high)) if curve.name == "success" else (low, high)
