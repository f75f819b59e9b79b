"""Starting again where a run has been: nothing is lost, and resuming takes up the right run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from roll.config import ConfigError, launch
from roll.pipelines.agentic import run_agentic
from roll.runs.lock import hold
from tests.e2e.support import ROOT, SMALL, rows, same, small_config, train_state

ONE_STEP = {"max_steps": 1, "eval_steps": 0}


def test_a_second_run_moves_the_first_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, **ONE_STEP, seed=1))
    first_rows, first_state = rows(out), train_state(out, 1)
    (out / "notes.txt").write_text("mine")
    run_agentic(small_config(out, **ONE_STEP, seed=2, progress="lines"))
    assert f"An earlier run was there: it is in {out}.1 now." in capsys.readouterr().out
    moved = tmp_path / "out.1"
    assert rows(moved) == first_rows and same(train_state(moved, 1), first_state)
    assert sorted(path.name for path in moved.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "logs",
        "outcome.json",
        "run.json",
        "trajectories",
    ]
    assert not same(train_state(out, 1)["model"], first_state["model"])
    assert len(rows(out)) == 1 and (out / "notes.txt").read_text() == "mine"


@pytest.mark.exhaustive
def test_resuming_an_older_checkpoint_sets_the_newer_one_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, eval_steps=0, save_steps=1, max_steps=2))
    newest = train_state(out, 2)
    older = out / "checkpoints" / "step=000001"
    run_agentic(small_config(out, eval_steps=0, save_steps=0, max_steps=2, resume_from_checkpoint=older))
    assert same(train_state(tmp_path / "out.1", 2), newest)
    assert same(train_state(out, 2), newest)
    assert [row["step"] for row in rows(out)] == [1, 2]


@pytest.mark.exhaustive
def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, eval_steps=0, save_steps=1, max_steps=2))
    expected, file = train_state(out, 2), out / "checkpoints" / "step=000002" / "train_state.pt"
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(b"\x55" * 4000)
    run_agentic(small_config(out, eval_steps=0, max_steps=2, resume_from_checkpoint="true", progress="lines"))
    said = " ".join(capsys.readouterr().out.split())
    assert "step=000002 is damaged: train_state.pt is not as it was written." in said
    assert "The run goes on from step=000001, the newest whole checkpoint." in said
    assert same(train_state(out, 2), expected)
    assert (tmp_path / "out.1" / "checkpoints" / "step=000002").is_dir()


def test_a_run_is_refused_where_another_one_writes_and_touches_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (out / "checkpoints" / "step=000001.partial").mkdir(parents=True)
    with hold(out):
        before = sorted(out.rglob("*"))
        elsewhere = {"checkpoint_config.output_dir": out / "checkpoints"}
        for config in (small_config(out, **ONE_STEP), small_config(tmp_path / "new", **ONE_STEP, **elsewhere)):
            with pytest.raises(ConfigError, match=rf"output_dir = .*\n.*this very process \({os.getpid()}\)"):
                run_agentic(config)
        assert sorted(out.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_resuming_where_nothing_is_starts_anew_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_agentic(small_config(tmp_path, **ONE_STEP, resume_from_checkpoint="true", progress="lines"))
    assert "to resume from: starting anew" in capsys.readouterr().out
    assert [row["step"] for row in rows(tmp_path)] == [1]


@pytest.mark.exhaustive
def test_a_sweep_gives_every_job_its_folder_and_lists_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = {**SMALL, "max_steps": 1, "output_dir": "out", "progress": "none"}
    words = [f"{key}={value}" for key, value in overrides.items()]
    argv = ["--config-name", "sokoban", "--multirun", "seed=1,2", *words]
    launch(run_agentic, config_dir=ROOT / "examples" / "config", argv=argv)
    jobs = sorted(path.parent.parent for path in tmp_path.glob("out/multirun/*/*/checkpoints/step=000001"))
    assert [job.name for job in jobs] == ["0", "1"]
    assert not same(train_state(jobs[0], 1)["model"], train_state(jobs[1], 1)["model"])
    listed = [line.split("│")[2:5] for line in capsys.readouterr().out.splitlines() if "finished" in line]
    assert [cells[0].strip() for cells in listed] == ["1", "2"] and all("success" in cells[2] for cells in listed)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", jobs[0].parent.name)


@pytest.mark.exhaustive
def test_a_checkpoint_can_be_named_on_the_command_line_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_agentic(small_config(Path("first"), **ONE_STEP))
    overrides = {**SMALL, **ONE_STEP, "output_dir": "second", "pretrain": "first/checkpoints/step=000001/hf"}
    words = [f"{key}={value}" for key, value in overrides.items()]
    launch(run_agentic, config_dir=ROOT / "examples" / "config", argv=["--config-name", "sokoban", *words])
    assert "pretrain=first/checkpoints/step=000001/hf" in capsys.readouterr().out.replace("'", "").replace('"', "")
    state = json.loads(Path("second/checkpoints/step=000001/state.json").read_text())
    assert state["pretrain"] == "first/checkpoints/step=000001/hf"
