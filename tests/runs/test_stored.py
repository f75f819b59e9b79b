"""A run as its folder tells it, of a real run: while it runs, when it has ended, however it ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import roll
import roll.envs
from roll.runs.curves import Curve
from roll.runs.layout import RECORD
from roll.runs.lock import hold
from roll.runs.outcome import OUTCOME, State, outcome_recorded, read_outcome, state_of
from roll.runs.stored import StoredRun, find_runs
from tests.e2e.support import SMALL

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    folder = tmp_path_factory.mktemp("runs") / "first"
    return roll.train("sokoban", overrides=SMALL, output_dir=folder, progress="none", track_with="stdout")


@pytest.mark.exhaustive
def test_a_run_keeps_its_metrics_whatever_tracks_it(run: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    curve = run.curve("val/success")
    assert curve.steps == (0, 2, 4) and all(0 <= value <= 1 for value in curve.values)
    lines = (run.folder / "logs" / "metrics.jsonl").read_text().splitlines()
    logged = {row["step"]: row["val/success"] for row in map(json.loads, lines) if "val/success" in row}
    assert dict(curve) == logged
    assert curve.to_pandas().to_dict() == logged and curve.to_pandas().index.name == "step"
    assert run.main_curve == curve and run.curve("reward/mean").steps == (1, 2, 3, 4)


def test_it_says_what_it_is(run: StoredRun) -> None:
    assert run.state is State.FINISHED and run.steps == run.max_steps == 4 and run.name == "sokoban"
    assert [step for step, _ in run.checkpoints] == [2, 4] and run.checkpoint == run.checkpoints[-1][1]
    assert run.config["rollout_batch_size"] == 16 and (run.seconds or 0) > 0
    assert "finished, 4 steps" in repr(run) and "val/success" in run._repr_html_()


def test_trajectories_are_tables_and_records(run: StoredRun) -> None:
    table = run.trajectories(step=4, phase="train")
    assert table.num_rows == 16 and set(table["phase"].to_pylist()) == {"train"}
    frame = run.trajectories(phase="val", columns=["step", "score"]).to_pandas()
    assert list(frame.columns) == ["step", "score"] and sorted(frame["step"].unique()) == [0, 2, 4]
    assert [each.score for each in run.episodes(step=4, phase="train")] == table["score"].to_pylist()


def test_a_run_leaves_the_tags_of_its_configuration_with_itself(run: StoredRun) -> None:
    told = run.config["custom_env"]["SimpleSokoban"]["agent_system_template"]
    assert roll.envs.get_tag("SimpleSokoban").agent_system_template != told


def test_what_is_not_there_is_named_with_what_is(run: StoredRun) -> None:
    with pytest.raises(roll.ConfigError, match="did you mean 'val/success'"):
        run.curve("val/sucess")
    with pytest.raises(roll.ConfigError, match="(?s)no train trajectories of step 9.*step=000001"):
        run.trajectories(step=9, phase="train")
    with pytest.raises(roll.ConfigError, match=str(run.folder)):
        roll.open_run(run.folder.parent)
    with pytest.raises(roll.ConfigError, match="no run in"):
        roll.open_run(run.checkpoints[0][1])


def test_a_folder_that_was_moved_is_the_same_run(run: StoredRun, tmp_path: Path) -> None:
    moved = StoredRun.open(shutil.copytree(run.folder, tmp_path / "moved"))
    assert moved.checkpoint == tmp_path / "moved" / "checkpoints" / "step=000004"
    assert moved.curve("val/success") == run.curve("val/success")


def test_runs_are_found_wherever_they_are_but_not_in_their_checkpoints(run: StoredRun, tmp_path: Path) -> None:
    for name in ("a", "a/multirun/today/0", "b c"):
        shutil.copytree(run.folder, tmp_path / name)
    found = {str(each.folder.relative_to(tmp_path)) for each in find_runs(tmp_path)}
    assert found == {"a", "a/multirun/today/0", "b c"}


def test_a_run_says_how_it_ended_or_that_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"config": {}}')
    assert state_of(tmp_path) is State.INTERRUPTED  # killed: it could not say anything
    with hold(tmp_path):
        assert state_of(tmp_path) is State.RUNNING
    for error, state in (
        (KeyboardInterrupt(), State.INTERRUPTED),
        (RuntimeError("no memory"), State.FAILED),
        (None, State.FINISHED),
    ):
        try:
            with outcome_recorded(tmp_path, lambda: True):
                if error is not None:
                    raise error
        except BaseException as raised:
            assert raised is error
        assert state_of(tmp_path) is state
    (tmp_path / OUTCOME).unlink()
    with pytest.raises(RuntimeError), outcome_recorded(tmp_path, lambda: False):
        raise RuntimeError("the folder is another's")
    assert read_outcome(tmp_path) is None


def test_a_lock_file_that_a_killed_run_left_is_no_running_run(tmp_path: Path) -> None:
    with hold(tmp_path):
        left = (tmp_path / "run.lock").read_text()
    (tmp_path / "run.lock").write_text(left)  # of this very process, which is alive and holds nothing
    assert state_of(tmp_path) is State.INTERRUPTED
    with hold(tmp_path):
        pass


def test_the_best_value_of_a_loss_is_the_least() -> None:
    assert Curve("val/loss", (0, 2, 4), (2.0, 1.0, 1.0)).best == (2, 1.0)
    assert Curve("val/success", (0, 2, 4), (0.5, 0.7, 0.7)).best == (2, 0.7)
