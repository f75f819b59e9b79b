"""Games that TextWorld generates: a house, things in it, and a task, in the words of its own interpreter."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from roll.envs.adapters.libraries import library
from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError

CACHE: Final = Path.home() / ".cache" / "roll" / "textworld"
"""Where games are kept once they are made, which takes seconds."""
_TITLE: Final = "$$"
"""What the lines of the library's large title are drawn with."""
_LONGEST: Final = 200
"""Characters of a command that are read."""
_ONE_AT_A_TIME = threading.Lock()
"""The library parses with objects that all its games share."""


class TextWorldEnv(TextEnv):
    """A house with things in it, and a task to do there.

    Games are made on this machine, each when its level is first played, and kept in a folder. Their rules, words and
    points are TextWorld's own.

    Args:
        rooms: Rooms of the house.
        objects: Things in it.
        quest_length: Commands that the task takes at least.
        games: How many different games there are to draw from.
        games_seed: Fixes these games: another number gives others.
        shows_commands: Whether each observation lists the commands that are possible.
        folder: Where games are kept.
        max_steps: The episode is truncated after so many commands.
        format_penalty: Added to the reward of a response without a command.
        action_pattern: Finds the command in a response; empty: the response is the command.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: An option cannot work.
        MissingDependencyError: textworld is not installed.
    """

    def __init__(
        self,
        rooms: int = 3,
        objects: int = 6,
        quest_length: int = 3,
        games: int = 100,
        games_seed: int = 0,
        shows_commands: bool = False,
        folder: str | None = None,
        max_steps: int | None = 30,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        library("textworld", "textworld")
        options = {"rooms": rooms, "objects": objects, "quest_length": quest_length}
        for name, number in {**options, "games": games}.items():
            if int(number) < 1:
                raise EnvConfigError(f"{name}={number}: must be at least 1")
        self._options = json.dumps(options, sort_keys=True)
        self._games, self._games_seed = int(games), int(games_seed)
        self._shows = bool(shows_commands)
        self._folder = CACHE if folder is None else Path(folder).expanduser()
        self._game: Any = None
        self._state: Mapping[str, Any] = {}
        super().__init__(
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=-1.0,  # a game may take a point for a task that became impossible
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Begin the game that the seed chooses."""
        self.close()
        level = self._games_seed * 1_000_003 + int(self.np_random.integers(self._games))
        file = game_file(self._folder, self._options, level)
        with _ONE_AT_A_TIME:
            self._game = _interpreter(file)
            self._state = self._game.reset()
        return self._told()

    def act(self, action: str) -> Outcome:
        """Give a command."""
        # The interpreter waits for ever where a line has a zero byte, and knows no more than ASCII.
        words = " ".join("".join(each if " " <= each <= "~" else " " for each in action).split())[:_LONGEST]
        if not words:
            return Outcome(self._observation, {"points": 0.0}, effective=False)
        before, seen = self._state["score"] or 0, self._observation
        with _ONE_AT_A_TIME:
            self._state, _, done = self._game.step(words)
        most = max(1, self._state["max_score"] or 1)
        earned = ((self._state["score"] or 0) - before) / most
        told = self._told()
        return Outcome(told, {"points": earned}, bool(done), bool(self._state["won"]), told != seen)

    def solution(self) -> Sequence[str] | None:
        """Return the commands of the library's own walk-through that are left."""
        commands = self._state.get("policy_commands")
        return list(commands) if commands else None

    def describe(self) -> str:
        """Return how the game is spoken to."""
        return (
            "You are in a house and have a task, which the game tells. Give commands of a few words, such as: look, "
            "inventory, go east, open chest, take key from table, put cup on shelf, unlock door with key."
        )

    def close(self) -> None:
        """End the interpreter."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _told(self) -> str:
        lines = [line.strip() for line in str(self._state["feedback"]).splitlines() if _TITLE not in line]
        text = "\n".join(line for line, after in zip(lines, [*lines[1:], ""], strict=True) if line or after)
        if not self._shows:
            return text.strip()
        return f"{text.strip()}\nPossible commands: {', '.join(self._state['admissible_commands'])}."


def game_file(folder: Path, options: str, level: int) -> Path:
    """Return the file of a game, which is made if it is not there; others who want the same wait for it.

    Args:
        folder: Where games are kept.
        options: ``rooms``, ``objects`` and ``quest_length``, as JSON.
        level: Its number.

    Raises:
        EnvConfigError: It cannot be made.
    """
    version = library("textworld", "textworld").__version__
    name = blake2b(f"{version} {options} {level}".encode(), digest_size=12).hexdigest()
    file = folder / f"{name}.z8"
    if file.is_file() and file.with_suffix(".json").is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    with _ONE_AT_A_TIME, FileLock(str(file.with_suffix(".lock"))):
        if not (file.is_file() and file.with_suffix(".json").is_file()):
            _make(file, json.loads(options), level)
    return file


def _make(file: Path, options: Mapping[str, int], level: int) -> None:
    textworld = library("textworld", "textworld")
    wanted = textworld.GameOptions()
    wanted.nb_rooms, wanted.nb_objects = options["rooms"], options["objects"]
    wanted.quest_length = options["quest_length"]
    wanted.seeds = level % (1 << 31)
    wanted.path, wanted.force_recompile = str(file), True
    try:
        textworld.make(wanted)
    except Exception as error:
        raise EnvConfigError(f"{dict(options)}: TextWorld cannot make such a game ({error})") from error


@lru_cache(maxsize=1)
def _wanted() -> Any:
    return library("textworld", "textworld").EnvInfos(
        admissible_commands=True, policy_commands=True, score=True, max_score=True, won=True, lost=True
    )


def _interpreter(file: Path) -> Any:
    return library("textworld", "textworld").start(str(file), _wanted())
