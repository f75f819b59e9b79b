"""Questions of a file as an environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.envs import Tag, make
from roll.envs.errors import EnvConfigError


def write(folder: Path, *rows: object) -> str:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("right", "said", "reward"),
    [("42", "42.0", 1.0), ("1/2", "0.5", 1.0), ("42", "41", 0.0), ("Lima", "lima", 1.0), ("Lima", "42", 0.0)],
)
def test_the_first_answer_counts(tmp_path: Path, right: str, said: str, reward: float) -> None:
    env = make(Tag("P", "problems", {"file_name": write(tmp_path, {"prompt": "What?", "ground_truth": right})}))
    assert env.reset(seed=1)[0] == "What?"
    _, earned, terminated, _, info = env.step(f"<answer>{said}</answer>")
    assert (earned, terminated, info["metrics"]["success"]) == (reward, True, reward)


def test_no_answer_ends_the_episode_without_a_reward(tmp_path: Path) -> None:
    env = make(Tag("P", "problems", {"file_name": write(tmp_path, {"prompt": "What?", "ground_truth": 3})}))
    env.reset(seed=1)
    assert env.step("three")[1:4] == (0.0, False, True)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for name, problem in ((str(tmp_path / "none"), "cannot be read"), (write(tmp_path, {"prompt": "x"}), "line 1")):
        with pytest.raises(EnvConfigError, match=problem):
            make(Tag("P", "problems", {"file_name": name}))
