"""What a study leaves for people: the best configuration as a file, and the curves of its trials as a picture."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from roll.config import load
from roll.config.ranges import Choice, Range
from roll.config.written import to_yaml
from roll.tuning.plan import Plan, word
from roll.tuning.study import Results, Tried

BEST: Final = "best.yaml"
CURVES: Final = "curves.png"

_COLOURS: Final = {"finished": "#4477aa", "stopped": "#bbbbbb", "open": "#ccbb44", "failed": "#ee6677"}


def best_words(plan: Plan, best: Tried) -> list[str]:
    """Return what sets the keys of the best trial on the command line."""
    return [word(key, value) for key, value in best.values.items()]


def write_best(plan: Plan, results: Results) -> Path | None:
    """Write the configuration of the best trial, with every key; ``None`` if there is none yet."""
    best = results.best
    if best is None:
        return None
    found = best_words(plan, best)
    config = load(plan.name, overrides=[*plan.words, *found])
    untuned = config.model_copy(update={"tune": {}}).from_origins(config.origins)
    command = shlex.join(["roll", "train", plan.name, *plan.words, *found])
    head = [
        f"The best of {len(results.trials)} trials: {results.metric} {best.value:.4g} after {best.steps} steps, "
        f"trial {best.number}.",
        *found,
        f"The same: {command}",
    ]
    path = plan.folder / BEST
    path.write_text("".join(f"# {line}\n" for line in head) + to_yaml(untuned), encoding="utf-8")
    return path


def draw_curves(plan: Plan, results: Results) -> Path | None:
    """Draw what was measured over the steps, and over each key; ``None`` without matplotlib or measurements."""
    measured = [one for one in results.trials if one.curve]
    if not measured or find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    keys = list(plan.space)
    figure = Figure(figsize=(4.5 * (1 + len(keys)), 3.6), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(keys), squeeze=False)[0]
    for one in measured:
        is_best = results.best is not None and one.number == results.best.number
        first.plot(
            list(one.curve),
            list(one.curve.values()),
            marker="o",
            markersize=3,
            color="#228833" if is_best else _COLOURS[one.state],
            linewidth=2.5 if is_best else 1.2,
            zorder=3 if is_best else 2,
        )
        first.annotate(str(one.number), (one.steps, one.value), fontsize=7, xytext=(3, 0), textcoords="offset points")
    first.set(xlabel="step", ylabel=results.metric, title=f"{plan.config.exp_name}: {len(results.trials)} trials")
    for axes, key in zip(others, keys, strict=True):
        _draw_key(axes, key, plan.space[key], measured)
    path = plan.folder / CURVES
    figure.savefig(path, dpi=110)
    return path


def _draw_key(axes: Any, key: str, one: Range | Choice, measured: list[Tried]) -> None:
    for tried in measured:
        value = tried.values[key]
        place = value if isinstance(one, Range) else str(value)
        axes.scatter(place, tried.value, color=_COLOURS[tried.state], s=22)
        axes.annotate(str(tried.number), (place, tried.value), fontsize=7, xytext=(3, 3), textcoords="offset points")
    if isinstance(one, Range):
        if one.log:
            axes.set_xscale("log")
        axes.set_xlim(one.low, one.high)
    axes.set(xlabel=key, title="newest value")
