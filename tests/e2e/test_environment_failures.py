"""Environments that misbehave: their episodes end, the run goes on and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config import RunError
from roll.env_managers import retrying
from roll.pipelines.agentic import run_agentic
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e import broken_envs
from tests.e2e.support import rows, small_config

QUICK = {"max_steps": 1, "eval_steps": 0, "env_modules": "[tests.e2e.broken_envs]", "progress": "lines"}


def mixed(*tags: str) -> dict[str, object]:
    return {"train_env_manager.tags": f"[{','.join(tags)}]", "val_env_manager.tags": "[steady]"}


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("raises", "RuntimeError: the server of this game is down"),
        pytest.param("hangs", "step took longer than timeouts.step=0.3 s", marks=pytest.mark.exhaustive),
        pytest.param(
            *("rubbish", "step() must return (observation, reward, terminated, truncated, info)"),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_broken_environment_costs_its_episodes_only(
    tag: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"train_env_manager.timeouts.step": 0.3, "train_env_manager.retry_wait": 0.01}
    run_agentic(small_config(tmp_path, **QUICK, **mixed("steady", tag), **changes))
    (row,) = rows(tmp_path)
    assert row["rollout/retries"] == (16 if tag == "hangs" else 0)
    assert row["rollout/errors"] == 8 and row["batch/samples"] == 8
    assert row["rollout/status/error_timeout" if tag == "hangs" else "rollout/status/error_env"] == 0.5
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "step 1: 8 of 16 episodes failed" in warnings[0] and reason in warnings[0]


def test_a_run_in_which_every_episode_fails_stops_with_the_first_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Every one of the 16 episodes failed.*the server of this game is down"):
        run_agentic(small_config(tmp_path, **QUICK, **mixed("raises")))


def test_a_server_that_comes_and_goes_leaves_the_episodes_as_they_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = {}
    for chance in (0.0, 0.3):
        monkeypatch.setattr(broken_envs.Shaky, "chance", chance)
        retries = {"train_env_manager.max_retries": 100, "train_env_manager.retry_wait": 1e-6}
        monkeypatch.setattr(retrying, "LONGEST_WAIT", 0.01)
        run_agentic(small_config(tmp_path / str(chance), **QUICK, **mixed("shaky"), **retries))
        (row,) = rows(tmp_path / str(chance))
        assert row["rollout/errors"] == 0 and (row["rollout/retries"] > 0) == (chance > 0)
        found = read_trajectories(trajectory_path(tmp_path / str(chance), 1, "train"))
        assert sum(each.retries for each in found) == row["rollout/retries"]
        played[chance] = [(t.group_id, t.episode, t.score, [turn.completion_ids for turn in t.turns]) for t in found]
    assert played[0.3] == played[0.0]


def test_prompts_that_do_not_fit_stop_the_run_with_the_key_to_raise(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="raise sequence_length"):
        run_agentic(small_config(tmp_path, **QUICK, **mixed("steady"), sequence_length=20))


@pytest.mark.exhaustive
def test_rewards_that_teach_nothing_are_reported_once_per_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_agentic(small_config(tmp_path, **{**QUICK, "max_steps": 2}, **mixed("indifferent")))
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2
    assert all("every advantage of the batch is zero" in warning for warning in warnings)


def test_environments_that_await_are_trained_on(tmp_path: Path) -> None:
    run_agentic(small_config(tmp_path, **QUICK, **mixed("awaits", "steady")))
    (row,) = rows(tmp_path)
    assert row["rollout/errors"] == 0 and row["batch/samples"] == 16
