"""Environments that answer in messages of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from manager_fakes import CharacterRenderer, CountEnv, play

from roll.trajectories.model import Status
from roll.trajectories.store import read_trajectories, write_trajectories


class Renderer(CharacterRenderer):
    def role_problem(self, role: str) -> str | None:
        return "the template has no such role" if role == "system" else None


class Speaking(CountEnv):
    def __init__(self, messages: Any) -> None:
        super().__init__()
        self.messages = messages

    def step(self, response: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(response)
        return observation, reward, terminated, truncated, {**info, "messages": self.messages}


def test_messages_stand_in_place_of_the_observation_and_are_stored(tmp_path: Path) -> None:
    said = [{"role": "tool", "content": "42"}, {"role": "user", "content": "go on"}]
    trajectory = play(Speaking(said), renderer=Renderer())
    assert trajectory.status is Status.COMPLETED
    assert [turn.messages for turn in trajectory.turns] == [[], said, said]
    assert trajectory.conversation[3:5] == said
    assert CharacterRenderer().decode(trajectory.turns[1].prompt_ids).endswith("t42\x01ugo on\x01")
    path = write_trajectories(tmp_path / "x.parquet", [trajectory], step=1, phase="train", run="r")
    assert read_trajectories(path) == [trajectory]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "system", "content": "x"}], "role system, and the template has no such role"),
        ([{"role": "assistant", "content": "x"}], r"a role \(user, tool, system\)"),
        ([{"role": "tool"}], "a content that is text"),
        ([], "must be a list of messages"),
    ],
)
def test_messages_that_cannot_be_said_end_the_episode(messages: Any, problem: str) -> None:
    trajectory = play(Speaking(messages), renderer=Renderer())
    assert trajectory.status is Status.ERROR_ENV
    assert re.search(problem, trajectory.error or "")
