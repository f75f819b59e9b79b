"""Learning curves of one or several runs as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.tracking import read_metrics

_COLORS = ("#0b7285", "#c2571a", "#5f3dc4", "#2b8a3e", "#a61e4d", "#495057")


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run.

    Attributes:
        steps: Training steps.
        minutes: Wall time at each, empty where the run did not log ``time/elapsed``.
        values: The metric.
    """

    steps: list[int]
    minutes: list[float]
    values: list[float]


def read_curve(path: str | Path, metric: str) -> Curve:
    """Return one metric from a JSON lines file; records without it, or where it is null, are skipped."""
    curve = Curve([], [], [])
    for record in read_metrics(path):
        if record.get(metric) is not None:
            curve.steps.append(record["step"])
            curve.values.append(record[metric])
            if record.get("time/elapsed") is not None:
                curve.minutes.append(record["time/elapsed"] / 60)
    return curve if len(curve.minutes) == len(curve.steps) else Curve(curve.steps, [], curve.values)


def plot_learning_curves(
    jsonl_paths: Sequence[str | Path],
    out_png: str | Path,
    *,
    labels: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw validation success over steps and, where runs logged them, over minutes, and the training reward over steps.

    Args:
        jsonl_paths: ``metrics.jsonl`` of each run.
        out_png: Picture to write; its suffix chooses the format.
        labels: Names of the runs, ``seed 0, seed 1, …`` if not given.
        title: Shown above.

    Returns:
        The path written.

    Raises:
        ValueError: No paths, as many labels as paths are not given, or no run has ``val/success``.
    """
    import matplotlib  # here, not above: half a second that no training run should pay
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(labels) if labels is not None else [f"seed {index}" for index in range(len(jsonl_paths))]
    if not jsonl_paths or len(names) != len(jsonl_paths):
        raise ValueError(f"plot_learning_curves needs one label per run: {len(jsonl_paths)} runs, {len(names)} labels")
    success = [read_curve(path, "val/success") for path in jsonl_paths]
    rewards = [read_curve(path, "reward/mean") for path in jsonl_paths]
    if not any(curve.values for curve in success):
        raise ValueError(f"none of {', '.join(map(str, jsonl_paths))} has val/success; did the runs evaluate?")
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        timed = any(curve.minutes for curve in success)
        by_step, *by_minute, reward = figure.subplots(1, 3 if timed else 2)
        for index, name in enumerate(names):
            style = {"color": _COLORS[index % len(_COLORS)], "label": _with_change(name, success[index])}
            percent = [100 * value for value in success[index].values]
            by_step.plot(success[index].steps, percent, marker="o", markersize=4, **style)
            if success[index].minutes:
                by_minute[0].plot(success[index].minutes, percent, marker="o", markersize=4, **style)
            reward.plot(rewards[index].steps, rewards[index].values, linewidth=1, alpha=0.3, color=style["color"])
            reward.plot(rewards[index].steps, _smooth(rewards[index].values), linewidth=1.8, color=style["color"])
        for axes, x_label, y_label in (
            (by_step, "training steps", "validation success (%)"),
            *((axes, "minutes", "validation success (%)") for axes in by_minute),
            (reward, "training steps", "training reward (mean of 5 steps)"),
        ):
            axes.set(xlabel=x_label, ylabel=y_label)
            axes.grid(alpha=0.25)
        by_step.legend(frameon=False, loc="lower right")
        for axes in by_minute:
            axes.sharey(by_step)
        if title:
            figure.suptitle(title, fontweight="bold")
        Path(out_png).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out_png, dpi=130)
    return Path(out_png)


def _with_change(name: str, curve: Curve) -> str:
    """Return the label with first and last value."""
    return f"{name}: {curve.values[0]:.0%} → {curve.values[-1]:.0%}" if curve.values else name


def _smooth(values: Sequence[float], window: int = 5) -> list[float]:
    """Return the mean of each value and those before it, up to ``window`` of them."""
    spans = [values[max(0, index - window + 1) : index + 1] for index in range(len(values))]
    return [sum(span) / len(span) for span in spans]
