"""``roll runs``: what it says of folders as runs leave them."""

from __future__ import annotations

import json
import re
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


def test_main_metrics_are_shown_and_all_of_them_on_demand(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for number, name in enumerate(("slow", "other")):
        row = {"step": 6, "train/policy/entropy": 0.5 + number, "memory/peak": 7.0}
        with (folder / name / "logs" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    words = ["runs", "diff", str(folder / "slow"), str(folder / "other")]
    shown = said(words, capsys)[1]
    assert re.search(r"train/policy/entropy +0\.5 +1\.5", shown) and "memory/peak" not in shown
    assert re.search(r"memory/peak +7 +7", said([*words, "--all"], capsys)[1])
    assert "memory/peak" in [each["name"] for each in json.loads(said([*words, "--json"], capsys)[1])["metrics"]]


def test_a_section_that_only_one_run_has_is_one_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    options = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": "auto"}}
    make_run(tmp_path / "without", 1e-5, [0.1], strategy_config=None, deepspeed_zero2=None)
    make_run(tmp_path / "with", 1e-5, [0.1], strategy_config=options, deepspeed_zero2=options)
    words = ["runs", "diff", str(tmp_path / "without"), str(tmp_path / "with")]
    assert json.loads(said([*words, "--json"], capsys)[1])["keys"] == [
        {"name": "strategy_config", "left": None, "right": options}
    ]
    assert re.search(r"strategy_config +null +\{2 keys\}", said(words, capsys)[1])
    listed = {line.split()[0]: line for line in said(["runs", str(tmp_path)], capsys)[1].splitlines() if line.strip()}
    assert "strategy_config={2 keys}" in listed["with"] and "more" not in listed["with"]


def test_a_folder_without_runs_and_one_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "roll train sokoban makes one" in said(["runs", str(tmp_path)], capsys)[1]
    code, _, err = said(["runs", str(tmp_path / "nowhere")], capsys)
    assert code == 2 and "there is no folder" in err
    code, _, err = said(["runs", "diff", str(tmp_path), str(tmp_path)], capsys)
    assert code == 2 and "no run in" in err


def test_names_are_as_short_as_they_can_be() -> None:
    short = short_names(["a.rate", "b.rate", "seed", "c.size"])
    assert list(short.values()) == ["a.rate", "b.rate", "seed", "size"]
    # A key at the top level may end another one, whole.
    assert short_names(["max_steps", "custom_envs.Lake.max_steps", "b.size", "size"]) == {
        "max_steps": "max_steps",
        "custom_envs.Lake.max_steps": "Lake.max_steps",
        "b.size": "b.size",
        "size": "size",
    }


def test_a_sparkline_shows_lowest_and_highest_and_fits_its_width() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([]) == ""
    assert len(sparkline([0.1] * 100, width=16)) == 16
    long = sparkline(list(range(100)), width=10)
    assert long[0] == "▁" and long[-1] == "█" and list(long) == sorted(long)
