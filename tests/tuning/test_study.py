"""Studies with runs that are real processes and take a second each: what wins, what crashes, what goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.cli.app import main
from roll.config import ConfigError, RunError, load
from roll.tuning.plan import Plan, make_plan
from roll.tuning.report import draw_curves, write_best
from roll.tuning.study import Results, open_study

pytest.importorskip("optuna")
sqlalchemy = pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
TRIALS = 6
HILL = """
pipeline: hill
pipeline_modules: [hill]
max_steps: 9
eval_steps: 1
output_dir: output/hill
crashes_above: 3.0
tune:
  rate: {low: 0.01, high: 4.0, log: true}
"""


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a configuration, where this process and those that it starts find the kind of run."""
    folder = tmp_path_factory.mktemp("tuning")
    shutil.copy(Path(__file__).with_name("hill.py"), folder)
    (folder / "hill.yaml").write_text(HILL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


def tune(plan: Plan, *, trials: int | None = TRIALS, budget: float | None = None) -> tuple[Results, list[str]]:
    said: list[str] = []
    with open_study(plan, said.append) as study:
        return study.run(trials=trials, budget=budget), said


@pytest.fixture(scope="module")
def whole(elsewhere: Path) -> tuple[Plan, Results, list[str]]:
    """A study that nothing disturbed."""
    plan = make_plan("hill", seed=3)
    return plan, *tune(plan)


def found(results: Results) -> list[Any]:
    """What must be the same however often a study was interrupted."""
    return [(one.number, one.state, dict(one.values), dict(one.curve)) for one in results.trials]


@pytest.mark.exhaustive
def test_the_configuration_itself_is_tried_first_and_the_best_rate_wins(whole: tuple[Plan, Results, list[str]]) -> None:
    _, results, said = whole
    assert results.metric == "val/success" and results.ended == "6 trials were asked for"
    assert results.trials[0].values == {"rate": 0.05} and results.trials[0].state == "finished"
    assert {one.state for one in results.trials} >= {"finished", "stopped"}
    assert results.best is not None and results.best.number > 0 and results.best.steps == 9
    sound = [one for one in results.trials if one.state != "failed"]
    distance = {one.number: abs(one.values["rate"] / 0.5 - 1) for one in sound}
    assert results.best.number == min(distance, key=distance.__getitem__)
    assert [line for line in said if "stopped after" in line]


@pytest.mark.exhaustive
def test_a_trial_that_is_stopped_has_fewer_steps_than_its_run_was_asked_for(
    whole: tuple[Plan, Results, list[str]],
) -> None:
    plan, results, _ = whole
    stopped = [one for one in results.trials if one.state == "stopped"]
    assert {one.steps for one in stopped} <= set(plan.rungs[:-1])
    # Its run saved where it was, and can be gone on with.
    assert all((one.folder / "checkpoints").is_dir() for one in stopped)


def test_the_best_is_a_configuration_to_train_with(whole: tuple[Plan, Results, list[str]]) -> None:
    plan, results, _ = whole
    assert results.best is not None
    path = write_best(plan, results)
    best = load(str(path))
    assert best.rate == results.best.values["rate"] and best.tune == {} and best.max_steps == 9
    assert best.model_copy(update={"rate": plan.config.rate, "tune": plan.config.tune}) == plan.config  # type: ignore[attr-defined]
    drawn = draw_curves(plan, results)
    assert drawn is None or drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_optuna_s_own_program_reads_the_study(whole: tuple[Plan, Results, list[str]]) -> None:
    plan, results, _ = whole
    program = Path(sys.executable).with_name("optuna")
    if not program.is_file():
        pytest.skip("the program of Optuna is not beside this Python")
    storage = f"sqlite:///{plan.folder / 'study.db'}"
    words = [str(program), "trials", "--study-name", "hill", "--storage", storage, "-f", "json"]
    listed = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert len(listed) == TRIALS and {one["state"] for one in listed} <= {"COMPLETE", "PRUNED", "FAIL"}
    assert results.best is not None
    assert [one["number"] for one in listed if one["state"] == "COMPLETE"].count(results.best.number) == 1


@pytest.mark.exhaustive
def test_a_study_that_was_killed_tries_the_same_and_its_trial_goes_on_where_it_was(
    whole: tuple[Plan, Results, list[str]],
) -> None:
    _, undisturbed, _ = whole
    words = [sys.executable, "-m", "roll", "tune", "hill", "output_dir=output/killed", "--seed", "3"]
    words += ["--trials", str(TRIALS), "pause=0.3"]
    killed = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    seen = next(line for line in killed.stdout if line.startswith("trial 0  step 5 "))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    plan = make_plan("hill", ["output_dir=output/killed", "pause=0.3"], seed=3)
    results, said = tune(plan)
    assert seen and said[0].startswith("trial 0  goes on")
    assert found(results) == found(undisturbed)
    first, second = map(int, (plan.folder / "000" / "began_at").read_text().split())
    assert first == 0 and second >= 5, "it went on from what it had saved when the study was killed"


@pytest.mark.exhaustive
def test_ctrl_c_saves_and_says_how_to_go_on(elsewhere: Path) -> None:
    words = [sys.executable, "-m", "roll", "tune", "hill", "output_dir=output/stopped", "--trials", "2", "pause=0.3"]
    stopped = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    assert next(line for line in stopped.stdout if line.startswith("trial 0  step 2 "))
    stopped.send_signal(signal.SIGINT)
    _, error = stopped.communicate(timeout=120)
    assert stopped.returncode == 130
    said = next(line for line in error.splitlines() if line.startswith("Stopped. Go on with: "))
    assert said.endswith(" -m roll tune hill output_dir=output/stopped --trials 2 pause=0.3")
    assert list(Path("output/stopped/tune/000/checkpoints").glob("step=*"))


@pytest.mark.parametrize("moment", [1, pytest.param(7, marks=pytest.mark.exhaustive)])
def test_ctrl_c_in_the_middle_of_a_statement_is_ctrl_c(moment: int, elsewhere: Path) -> None:
    """What Optuna was doing is done first: a statement that is broken off leaves the database locked."""
    plan, said, sent = make_plan("hill", [f"output_dir=output/amid{moment}"]), list[str](), list[int]()

    def interrupt(*statement: Any) -> None:
        if not sent and len([line for line in said if "  step " in line]) >= moment:
            sent.append(moment)
            os.kill(os.getpid(), signal.SIGINT)

    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", interrupt)
    try:
        with open_study(plan, said.append) as study, pytest.raises(KeyboardInterrupt):
            study.run(trials=1, budget=None)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", interrupt)
    assert sent
    results, _ = tune(plan, trials=1)
    assert [(one.state, one.steps) for one in results.trials] == [("finished", 9)]


@pytest.mark.exhaustive
def test_what_crashes_is_recorded_with_its_reason_and_the_study_goes_on(elsewhere: Path) -> None:
    plan = make_plan("hill", ["output_dir=output/crash", "rate=0.3,3.5", "crashes_above=3"])
    results, _ = tune(plan, trials=None)
    assert results.ended == "every combination was tried"
    states = {one.values["rate"]: (one.state, one.why) for one in results.trials}
    assert states == {0.3: ("finished", ""), 3.5: ("failed", "the loss is not finite")}
    assert results.best is not None and results.best.values == {"rate": 0.3}


@pytest.mark.exhaustive
def test_a_study_that_only_fails_ends(elsewhere: Path) -> None:
    plan = make_plan("hill", ["output_dir=output/hopeless", "crashes_above=0.001"])
    with pytest.raises(RunError, match="4 trials in a row failed, the last one: the loss is not finite"):
        tune(plan, trials=None, budget=600)


@pytest.mark.exhaustive
def test_a_metric_that_runs_do_not_log_is_answered_with_those_that_they_do(elsewhere: Path) -> None:
    plan = make_plan("hill", ["output_dir=output/metric"], metric="val/sucess")
    with pytest.raises(ConfigError, match="did you mean 'val/success'"):
        tune(plan)
    # Nothing is lost: with the right one the same study goes on.
    results, _ = tune(make_plan("hill", ["output_dir=output/metric"], metric="val/success"), trials=1)
    assert results.trials[0].steps == 9


def test_another_study_is_not_mixed_into_the_folder_of_one(whole: tuple[Plan, Results, list[str]]) -> None:
    with (
        pytest.raises(ConfigError, match="another study.*steepness: 1 → 2"),
        open_study(make_plan("hill", ["steepness=2"], seed=3), print),
    ):
        pass


@pytest.mark.exhaustive
def test_a_study_that_ended_goes_on_with_more(
    whole: tuple[Plan, Results, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, results, _ = whole
    with pytest.raises(SystemExit) as left:
        main(["tune", "hill", "--seed", "3", "--trials", str(TRIALS), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert not left.value.code and len(printed["trials"]) == TRIALS
    assert printed["best"] == results.best.number if results.best else False
    assert load(printed["configuration"]).rate == printed["trials"][printed["best"]]["values"]["rate"]


@pytest.mark.exhaustive
def test_with_hyperband_a_study_in_two_sittings_is_that_in_one(elsewhere: Path) -> None:
    once, twice = (
        make_plan("hill", [f"output_dir=output/{name}"], seed=1, hyperband=True) for name in ("once", "twice")
    )
    undisturbed, _ = tune(once)
    tune(twice, trials=3)
    results, _ = tune(twice)
    assert found(results) == found(undisturbed)
    # Its brackets differ in when they first decide: some trials have as many steps as others go on after.
    assert {one.steps for one in results.trials if one.state == "stopped"} == set(once.rungs[:-1])


def test_without_optuna_it_is_said_what_to_install(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit) as left:
        main(["tune", "hill", "output_dir=output/none", "--trials", "1"])
    assert left.value.code == 3 and "pip install 'roll-rl[tune]'" in capsys.readouterr().err
    assert not Path("output/none").exists()
