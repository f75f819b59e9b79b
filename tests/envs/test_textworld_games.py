"""Games of TextWorld: the library's own words, points and walk-through."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roll.envs import make
from roll.envs.adapters.textworld_games import TextWorldEnv
from roll.envs.errors import EnvConfigError

textworld = pytest.importorskip("textworld")
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("textworld")


@pytest.mark.exhaustive
def test_its_own_walk_through_wins_and_a_level_is_made_once(folder: Path) -> None:
    env = TextWorldEnv(games=1, folder=str(folder), shows_commands=True)
    first, _ = env.reset(seed=3)
    assert "TextWorld" in first and "$$" not in first and "Possible commands: " in first
    (made,) = folder.glob("*.z8")
    written = made.stat().st_mtime_ns
    commands = env.solution() or ()
    assert len(commands) >= 3
    theirs = textworld.start(str(made), textworld.EnvInfos(score=True))
    theirs.reset()
    total = 0.0
    for command in commands:
        observation, reward, terminated, truncated, info = env.step(f"<answer>{command}</answer>")
        said, score, done = theirs.step(command)
        assert [word for word in said["feedback"].split() if "$$" not in word] == observation.partition(
            "\nPossible commands: "
        )[0].split()
        assert terminated == done and not truncated
        total += reward
    assert terminated and total == 1.0 and info["metrics"]["success"] == 1.0 and score == 1
    assert env.reset(seed=9)[0] == first and made.stat().st_mtime_ns == written
    env.close()


@pytest.mark.exhaustive
def test_levels_differ_and_silence_is_no_command(folder: Path) -> None:
    env = make("TextWorldHouse", folder=str(folder), games=2, max_steps=3)
    seen = {env.reset(seed=seed)[0] for seed in range(8)}
    assert len(seen) == 2
    before = env.reset(seed=0)[0]
    assert env.step("<answer>\x00é</answer>")[0] == before
    before = env.reset(seed=0)[0]
    observation, reward, *_ = env.step("nothing to read")
    assert observation == before and reward == -1.0
    _, _, _, truncated, info = [env.step("<answer>dance</answer>") for _ in range(2)][-1]
    assert truncated and info["metrics"]["success"] == 0.0


@pytest.mark.exhaustive
def test_games_that_are_made_and_played_in_threads_do_not_disturb_one_another(tmp_path: Path) -> None:
    def play(seed: int) -> list[str]:
        env = TextWorldEnv(games=3, folder=str(tmp_path))
        seen = [env.reset(seed=seed)[0]]
        seen += [env.step(f"<answer>{command}</answer>")[0] for command in env.solution() or ()]
        env.close()
        return seen

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(play, range(8)))
    assert together == [play(seed) for seed in range(8)]


def test_what_cannot_be_made_is_told() -> None:
    with pytest.raises(EnvConfigError, match="rooms=0: must be at least 1"):
        TextWorldEnv(rooms=0)
