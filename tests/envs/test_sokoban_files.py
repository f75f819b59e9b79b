"""Files of Sokoban levels in the format of Boxoban; the levels here are made by our own generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import roll.envs
from roll.envs.errors import EnvConfigError
from roll.envs.sokoban import SokobanEnv, solve
from roll.envs.sokoban_files import levels_of
from roll.envs.sokoban_levels import Level, generate_level

SYMBOLS = "# .*$@+"
"""Of cell codes 0 to 6, as Boxoban's description and the wiki of Sokoban formats have them."""


def published(levels: list[Level]) -> str:
    """Return levels as Boxoban's files have them: a number, the rows, a blank line."""
    rooms = ["\n".join("".join(SYMBOLS[code] for code in row) for row in level.codes()) for level in levels]
    return "".join(f"; {number}\n{room}\n\n" for number, room in enumerate(rooms))


def made(count: int, side: int = 10, boxes: int = 4) -> list[Level]:
    generator = np.random.default_rng(5)
    return [generate_level(generator, side, side, boxes, 30)[0] for _ in range(count)]


def test_levels_are_read_as_they_were_written(tmp_path: Path) -> None:
    levels = made(12)
    path = tmp_path / "000.txt"
    path.write_text(published(levels))
    assert list(levels_of(str(path))) == levels
    path.write_text(published(levels[:3]).replace("\n\n", "\n").replace("\n", "\r\n"))
    assert list(levels_of(str(path))) == levels[:3], "a file that changed is read again"


def test_the_seed_chooses_a_level_and_every_one_is_played(tmp_path: Path) -> None:
    levels = made(4, side=7, boxes=1) + made(1, side=9, boxes=2)
    path = tmp_path / "levels.txt"
    path.write_text(published(levels))
    env = roll.envs.make("SimpleSokoban", levels=str(path), max_steps=200)
    seen = set()
    for seed in range(40):
        first, _ = env.reset(seed=seed)
        assert env.reset(seed=seed)[0] == first
        assert env.observation_space.contains(first)
        seen.add(env.state())
    assert seen == set(levels)
    for move in solve(env.state()) or ():
        *_, terminated, _, info = env.step(f"<answer>{move}</answer>")
    assert terminated and info["metrics"]["success"] == 1.0


def test_rooms_of_other_collections_are_closed_by_what_surrounds_them(tmp_path: Path) -> None:
    path = tmp_path / "collection.txt"
    path.write_text("; uneven rows, floor as - and _\n  ####\n###--#\n#+_$ #\n# *  ###\n######\n")
    (level,) = levels_of(str(path))
    assert level.codes() == [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 6, 1, 4, 1, 0, 0, 0],
        [0, 1, 3, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("; 0\n#####\n#@x.#\n#####\n", r"line 3, column 3: 'x' is no cell"),
        (
            "; 0\n#####\n#@$.#\n#####\n\nTitle: a room\n",
            "line 6, column 1: 'T' is no cell.*words with ;",
        ),
        ("; 0\n#####\n#@$.\n#####\n", r"line 3, column 4: the room is open"),
        ("; 0\n#####\n#@$.#\n## ##\n", r"the room is open"),
        ("; 0\n#####\n#@$.#\n#####\n; 1\n#####\n# $.#\n#####\n", r"line 6: level: needs exactly one player, has 0"),
        ("; 0\n######\n#@$$.#\n######\n", r"line 2: .*2 boxes and 1 targets"),
        ("; 0\n#####\n#@* #\n#####\n", r"line 2: every box is on a target already"),
        ("; 0\n\n", "there are none in"),
    ],
)
def test_what_cannot_be_played_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(text)
    with pytest.raises(EnvConfigError, match=message):
        levels_of(str(path))


def test_files_and_made_levels_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(EnvConfigError, match="cannot be read"):
        SokobanEnv(levels=str(tmp_path / "nowhere.txt"))
    with pytest.raises(EnvConfigError, match="leave one out"):
        SokobanEnv(levels="any.txt", pushes=(1, 3))
