"""``roll runs``: what it says of folders as runs leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.cli.app import main
from roll.runs.comparing import short_names
from roll.runs.lock import hold
from roll.tracking.sparkline import sparkline


def make_run(folder: Path, rate: float, values: list[float], outcome: str | None = "finished", **keys: object) -> Path:
    """Write what a run writes."""
    config = {"exp_name": "sokoban", "max_steps": 8, "output_dir": str(folder), "seed": 1}
    config |= {"actor_train": {"training_args": {"learning_rate": rate}}, **keys}
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"config": config, "folder": "/elsewhere"}))
    rows = [{"step": 2 * number, "val/success": value} for number, value in enumerate(values)]
    (folder / "logs" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if outcome is not None:
        (folder / "outcome.json").write_text(json.dumps({"state": outcome, "ended": "2026-01-01T00:00:00+00:00"}))
    return folder


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(argv)
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "slow", 1e-5, [0.1, 0.2, 0.3, 0.2])
    make_run(tmp_path / "sweeps" / "fast", 1e-3, [0.1, 0.9], outcome="failed")
    make_run(tmp_path / "other", 1e-3, [0.5], outcome=None, exp_name="frozen_lake", seed=7)
    return tmp_path


def test_the_table_has_state_steps_best_and_what_differs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = said(["runs", str(folder)], capsys)
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0
    assert all(text in rows["slow"] for text in ("finished", "6/8", "val/success 0.300", "learning_rate=1e-05", "▁▅█▅"))
    assert all(text in rows["sweeps/fast"] for text in ("failed", "2/8", "0.900", "learning_rate=0.001"))
    assert "interrupted" in rows["other"] and "learning_rate" not in rows["other"]  # alone of its name


def test_json_says_the_same_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold(folder / "other"):
        code, out, err = said(["runs", str(folder), "--json"], capsys)
    found = {Path(run["folder"]).name: run for run in json.loads(out)}
    assert (code, err) == (0, "") and found["other"]["state"] == "running"
    assert found["slow"]["best"] == {"step": 4, "value": 0.3} and found["slow"]["curve"][-1] == [6, 0.2]
    assert found["fast"]["differs"] == {"actor_train.training_args.learning_rate": 1e-3}


def test_two_runs_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["runs", "diff", str(folder / "slow"), str(folder / "other"), "--json"], capsys)
    found = json.loads(out)
    assert code == 0 and {key["name"]: (key["left"], key["right"]) for key in found["keys"]} == {
        "seed": (1, 7),
        "actor_train.training_args.learning_rate": (1e-5, 1e-3),
    }
    assert found["metrics"] == [{"name": "val/success", "left": 0.2, "right": 0.5}]
    assert "seed" in said(["runs", "diff", str(folder / "slow"), str(folder / "other")], capsys)[1]


def test_a_folder_without_runs_and_one_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "roll train sokoban makes one" in said(["runs", str(tmp_path)], capsys)[1]
    code, _, err = said(["runs", str(tmp_path / "nowhere")], capsys)
    assert code == 2 and "there is no folder" in err
    code, _, err = said(["runs", "diff", str(tmp_path), str(tmp_path)], capsys)
    assert code == 2 and "no run in" in err


def test_names_are_as_short_as_they_can_be() -> None:
    short = short_names(["a.rate", "b.rate", "seed", "c.size"])
    assert list(short.values()) == ["a.rate", "b.rate", "seed", "size"]


def test_a_sparkline_shows_lowest_and_highest_and_fits_its_width() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([]) == ""
    assert len(sparkline([0.1] * 100, width=16)) == 16
    long = sparkline(list(range(100)), width=10)
    assert long[0] == "▁" and long[-1] == "█" and list(long) == sorted(long)
