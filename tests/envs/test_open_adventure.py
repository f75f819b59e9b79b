"""Colossal Cave, played with the program of Debian's package."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from roll.envs import make
from roll.envs.adapters.open_adventure import OpenAdventureEnv, _found
from roll.envs.errors import EnvConfigError, MissingDependencyError

pytestmark = pytest.mark.processes

try:
    PROGRAM = _found("advent")
except MissingDependencyError:
    pytest.skip("the package open-adventure is not installed", allow_module_level=True)

WALK = "in|take lamp|take keys|out|south|south|south|unlock grate|down|west|west|light lamp|west|west|west|down"
WALK += "|south|take gold"


def played(env: OpenAdventureEnv, *commands: str, seed: int = 4) -> list[Any]:
    env.reset(seed=seed)
    return [env.step(f"<answer>{command}</answer>") for command in commands]


def test_it_is_the_game_as_the_program_plays_it() -> None:
    env = OpenAdventureEnv(success_score=34)
    commands = WALK.split("|")
    first, _ = env.reset(seed=4)
    assert first.startswith("You are standing at the end of a road before a small brick building.")
    steps = played(env, *commands)
    given = "\n".join(env.commands) + "\n"
    theirs = subprocess.run([PROGRAM], input=given, capture_output=True, text=True, check=True).stdout
    pieces = theirs.partition("\n\n\nYou scored")[0].split("\n> ")[3:]
    for command, piece, step in zip(commands, pieces, steps, strict=True):
        assert piece.startswith(command) and piece.removeprefix(command).strip() == step[0]
    assert f"You scored {env.score} out of a possible 430, using {len(commands)} turns" in theirs
    assert sum(step[1] for step in steps) == pytest.approx((env.score - 32) / 430)
    assert env.score > 34 and steps[-1][4]["metrics"]["success"] == 1.0


def test_luck_is_the_seeds_and_a_game_ends_where_the_program_ends_it() -> None:
    env = OpenAdventureEnv()
    assert [step[0] for step in played(env, *WALK.split("|"))] == [step[0] for step in played(env, *WALK.split("|"))]
    *_, last = played(env, "quit", "yes")
    assert last[2] and not last[3] and last[4]["metrics"]["success"] == 0.0
    assert "rank amateur" in last[0]


@pytest.mark.parametrize("command", ["save", "SUSPEND", "please save", "resume /etc/passwd", "seed 3", "restart"])
def test_commands_that_touch_files_or_luck_are_refused(command: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    env = OpenAdventureEnv()
    refused, _, named = played(env, command, "yes", str(tmp_path / "cave"))
    assert refused[0] == "That command is not possible here." and refused[4]["metrics"]["action_is_effective"] == 0
    assert list(tmp_path.iterdir()) == [] and not named[2]


def test_what_cannot_work_is_told() -> None:
    with pytest.raises(MissingDependencyError, match="apt-get install open-adventure"):
        OpenAdventureEnv(program="no-such-game")
    with pytest.raises(EnvConfigError, match="success_score=1000"):
        OpenAdventureEnv(success_score=1000)


@pytest.mark.long
def test_three_hundred_turns_are_those_of_one_game_of_the_program() -> None:
    env = make("ColossalCave")
    words = ("look", "inventory", "in", "take lamp", "out", "south", "north", "east", "west", "drop lamp")
    steps = played(env, *(words[turn * 7 % len(words)] for turn in range(300)))
    assert [step[3] for step in steps] == [False] * 299 + [True]
    given = "\n".join(env.commands) + "\n"
    theirs = subprocess.run([PROGRAM], input=given, capture_output=True, text=True, check=True).stdout
    pieces = theirs.partition("\n\n\nYou scored")[0].split("\n> ")[3:]
    assert [piece.partition("\n")[2].strip() for piece in pieces] == [step[0] for step in steps]


@pytest.mark.long
def test_whatever_is_said_the_game_goes_on() -> None:
    env = make("ColossalCave", max_steps=40)
    for seed in range(3):
        env.reset(seed=seed)
        over = False
        while not over:
            word = str(env.np_random.choice(["north", "é\n> no", "in", "take all", "", "kill dwarf", "yes", "x" * 500]))
            _, _, terminated, truncated, _ = env.step(f"<answer>{word}</answer>")
            over = terminated or truncated
