"""The games of TextArena for one player."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from roll.common.spelling import did_you_mean
from roll.envs.adapters.libraries import library
from roll.envs.base import Outcome, TextEnv
from roll.envs.errors import EnvConfigError

MOVE_PATTERN = r"(\[[^\[\]]*\])"
"""A move is in square brackets."""
FETCHES = frozenset(
    "Codenames Debate DontSayIt GuessWho Hangman LetterAuction ScenarioPlanning TwentyQuestions WordChains WordLadder "
    "WordSearch Wordle".split()
)
"""Games that download words when they are imported, or ask a model behind a network."""
INSTRUCTION = "Play the game. Answer with your move in square brackets as the game asks for it, such as {example}."
_EARLIER = "…"


class TextArenaEnv(TextEnv):
    """A game of TextArena for one player, in the game's own words: each observation is what the game has said since.

    TextArena draws from the global generators of Python and NumPy. Here every game has states of its own, and only one
    is stepped at a time, so that games that are played together do not disturb one another.

    Args:
        game: Id of the game, such as ``"GuessTheNumber-v0"``.
        game_options: Options of the game itself, such as ``{"max_number": 100}``.
        actions: The moves there are, with their brackets; ``None`` where a move is free text.
        worst: The least that the game pays for a move. A response without a move earns it.
        longest: Most characters of an observation; what is older is left out.
        max_steps: The episode is truncated after so many steps.
        format_penalty: Added to the reward of a response without a move.
        action_pattern: Finds the move in a response; empty: the response is the move.
        env_instruction: Replaces the instruction; the rules are in the first observation.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such game, it is not for one player, needs a network, or an option cannot work.
        MissingDependencyError: If textarena is not installed.
    """

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        worst: float = -1.0,
        longest: int = 4000,
        max_steps: int | None = 100,
        format_penalty: float = 0.0,
        action_pattern: str | None = MOVE_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        self._options = json.dumps(dict(game_options or {}), sort_keys=True)
        check(game, self._options, 1)
        self.name, self.longest = game, int(longest)
        self._luck = Luck(0)
        super().__init__(
            actions=actions,
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction or INSTRUCTION.format(example=actions[0] if actions else "[your move]"),
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Make the game and reset it with a seed drawn from ours."""
        self._luck = Luck(int(self.np_random.integers(1 << 31)))
        with self._luck.drawn():
            self.game = begun(self.name, self._options, self._luck.seed, 1)
            return said(self.game, self.longest)

    def act(self, action: str) -> Outcome:
        """Make a move."""
        with self._luck.drawn():
            over, _ = self.game.step(action=action)
            refused = not over and bool(self.game.state.error_count)
            told = "" if over else said(self.game, self.longest)
            rewards, info = self.game.close() if over else ({}, {})
        if not over:
            return Outcome(told, {"game": 0.0}, effective=not refused)
        reward = float(rewards[0])
        reason = str((info.get(0) or {}).get("reason") or "The end.")
        return Outcome(reason, {"game": reward}, terminated=True, success=reward >= 1.0)


def said(game: Any, longest: int) -> str:
    """Return what a game has said to the player that is to move since it was last asked, without that one's own words.

    Args:
        game: The game; its luck is drawn.
        longest: Most characters; what is older is left out.
    """
    kinds = library("textarena", "textarena").ObservationType
    _, messages = game.get_observation()
    text = "\n".join(words.strip() for _, words, kind in messages if kind is not kinds.PLAYER_ACTION)
    return text if len(text) <= longest else f"{_EARLIER}{text[-longest:]}"


_ONE_AT_A_TIME = threading.Lock()


class Luck:
    """What the global generators of Python and NumPy hold while one game is stepped."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.python: Any = random.Random(seed).getstate()
        self.numpy: Any = np.random.RandomState(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Lend the global generators to the game; they hold what they held when it returns."""
        with _ONE_AT_A_TIME:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self.python)
            np.random.set_state(self.numpy)
            try:
                yield
            finally:
                self.python, self.numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


def begun(name: str, options: str, seed: int, players: int) -> Any:
    """Return a game of TextArena that has begun.

    Args:
        name: Its id.
        options: Its own options, as JSON.
        seed: Of its luck.
        players: How many play.
    """
    game = library("textarena", "textarena").make(f"{name}-raw", **json.loads(options))
    game.reset(num_players=players, seed=seed)
    return game


@lru_cache(maxsize=64)
def check(name: str, options: str, players: int) -> None:
    """Begin a game once, for what is wrong with its name or its options.

    Raises:
        EnvConfigError: There is no such game for so many players, or it needs a network.
    """
    library("textarena", "textarena")
    games = library("textarena.envs.registration", "textarena").ENV_REGISTRY
    if f"{name}-raw" not in games:
        raise EnvConfigError(f"game={name!r} is not in textarena. {did_you_mean(name, games)}")
    place = str(games[f"{name}-raw"].entry_point).split(".")
    if FETCHES & set(place):
        raise EnvConfigError(f"game={name!r}: it fetches words or answers from a network, which is not done here")
    with Luck(0).drawn():
        try:
            begun(name, options, 0, players)
        except Exception as error:
            who = "one player" if players == 1 else f"{players} players"
            raise EnvConfigError(
                f"game={name!r}, game_options={options}: it cannot be begun by {who} ({type(error).__name__}: {error})"
            ) from error
