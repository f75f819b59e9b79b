"""A run that was stopped, killed and resumed is the run that was never interrupted."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import BrokenRun, Run
from tests.e2e.support import rows, same, train_state

pytestmark = pytest.mark.exhaustive


def test_a_run_killed_at_three_moments_ends_with_the_same_weights(uninterrupted: Run, resumed: BrokenRun) -> None:
    expected, got = (train_state(run.output_dir, 4) for run in (uninterrupted, resumed))
    first = train_state(uninterrupted.output_dir, 2)
    assert not same(first["model"], expected["model"])
    assert same(got, expected)


def test_a_run_killed_at_three_moments_has_the_same_metrics(uninterrupted: Run, resumed: BrokenRun) -> None:
    assert rows(resumed.output_dir) == rows(uninterrupted.output_dir)


def test_metrics_have_every_step_and_evaluation_once(resumed: BrokenRun) -> None:
    recorded = [(row["step"], "val/success" in row) for row in rows(resumed.output_dir)]
    trained, evaluated = [(step, False) for step in range(1, 5)], [(step, True) for step in (0, 2, 4)]
    assert recorded == sorted(trained + evaluated)


def test_half_a_checkpoint_is_never_left(resumed: BrokenRun) -> None:
    assert sorted(path.name for path in (resumed.output_dir / "checkpoints").iterdir()) == [
        "step=000002",
        "step=000004",
    ]


def test_ctrl_c_saves_the_last_completed_step_and_says_how_to_go_on(resumed: BrokenRun) -> None:
    stopped = resumed.interrupted
    assert stopped.returncode == 130
    assert resumed.saved_by_interrupt == ["step=000001"]
    first, command = stopped.stderr.splitlines()
    assert first == "Stopped. The newest checkpoint is out/checkpoints/step=000001. Continue with:"
    assert "--config-name sokoban" in command and command.endswith("output_dir=out resume_from_checkpoint=true")


def test_a_finished_run_prints_a_command_that_resumes_it(uninterrupted: Run) -> None:
    lines = uninterrupted.process.stdout.splitlines()
    command = next(line for line in lines if "resume_from_checkpoint=true" in line)
    assert "--config-name sokoban" in command and "mini_batches=2" in command and command.endswith("max_steps=8")
    assert command.count("max_steps=") == command.count("output_dir=") == 1


def test_off_a_terminal_a_run_prints_its_plan_and_a_line_per_step(uninterrupted: Run) -> None:
    lines = uninterrupted.process.stdout.splitlines()
    starts = [line.split("  ")[0].strip() for line in lines]
    steps = [f"step {number}/4" for number in range(1, 5)]
    assert [start for start in starts if start.startswith(("step", "eval after"))] == [
        "eval after step 0",
        *steps[:2],
        "eval after step 2",
        *steps[2:],
        "eval after step 4",
    ]
    assert "  rollout   4 groups (SimpleSokoban 4) × 4 → 16 trajectories" in lines[:5]
    assert "Loading weights" not in uninterrupted.process.stderr + uninterrupted.process.stdout
    assert uninterrupted.process.stderr == ""


def test_the_first_step_is_not_charged_with_the_evaluation_before_it(uninterrupted: Run) -> None:
    line = next(line for line in uninterrupted.process.stdout.splitlines() if line.startswith("step 1/4"))
    assert "rollout" in line and "update" in line and "eval" not in line
