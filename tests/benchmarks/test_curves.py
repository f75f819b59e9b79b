"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from curves import plot_learning_curves, read_curve
from PIL import Image

from roll.tracking import make_trackers


def write_run(log_dir: Path, evaluations: bool = True) -> Path:
    with make_trackers("jsonl", log_dir=log_dir) as tracker:
        for step in range(0, 21):
            if evaluations and step % 10 == 0:
                tracker.log({"val/success": 0.5 + step / 100, "time/elapsed": 30.0 * step}, step)
            if step:
                tracker.log({"reward/mean": float("nan") if step == 3 else step / 10}, step)
    return log_dir / "metrics.jsonl"


def test_a_curve_holds_steps_minutes_and_values_of_one_metric(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    curve = read_curve(path, "val/success")
    assert (curve.steps, curve.minutes, curve.values) == ([0, 10, 20], [0.0, 5.0, 10.0], [0.5, 0.6, 0.7])
    rewards = read_curve(path, "reward/mean")
    assert 3 not in rewards.steps and len(rewards.steps) == 19 and rewards.minutes == []


def test_the_picture_shows_every_run(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    one = plot_learning_curves(paths[:1], tmp_path / "one.png")
    two = plot_learning_curves(paths, tmp_path / "new" / "two.png", title="sokoban", labels=["a", "b"])
    colors = [{color for _, color in Image.open(path).convert("RGB").getcolors(1 << 24)} for path in (one, two)]
    assert (11, 114, 133) in colors[0] & colors[1]  # first run
    assert (194, 87, 26) in colors[1] - colors[0]  # second run


def test_runs_without_evaluations_or_labels_that_do_not_match_are_errors(tmp_path: Path) -> None:
    path = write_run(tmp_path, evaluations=False)
    with pytest.raises(ValueError, match="has val/success"):
        plot_learning_curves([path], tmp_path / "a.png")
    with pytest.raises(ValueError, match="1 runs, 2 labels"):
        plot_learning_curves([path], tmp_path / "a.png", labels=["a", "b"])
