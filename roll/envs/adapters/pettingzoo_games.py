"""Games of PettingZoo whose players take turns (its agent-environment cycle)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pkgutil import iter_modules, resolve_name
from typing import Any, Final

import numpy as np

from roll.common.spelling import did_you_mean
from roll.envs.adapters.libraries import library
from roll.envs.adapters.textarena_games import MOVE_PATTERN
from roll.envs.errors import EnvConfigError
from roll.envs.seated import POLICY, Player, SeatedEnv

_PACKAGE: Final = "pettingzoo.classic"
_MARKS: Final = ".XO"
_INSTRUCTION: Final = (
    "Play the game {game}. On a board, X are your pieces, O those of the other player, and . is free. "
    "Answer with your move in square brackets, such as [{move}]."
)


class PettingZooTable:
    """A game of PettingZoo; see :class:`roll.envs.seats.SeatedGame`.

    Args:
        name: Its module in ``pettingzoo.classic``, such as ``"tictactoe_v3"``, or ``module:function`` of whatever makes
            an ``AECEnv`` that observes text, or a board of two players, and takes text or numbers.
        options: Its options, as JSON.
    """

    def __init__(self, name: str, options: str) -> None:
        self.env = _made(name, options)
        self.seats = tuple(map(str, self.env.possible_agents))
        self.takes_text = not hasattr(self.env.action_space(self.env.possible_agents[0]), "n")
        self._earned: dict[str, float] = {}

    def begin(self, luck: np.random.Generator) -> None:
        """Reset the game with a seed drawn from ``luck``."""
        self._earned = dict.fromkeys(self.env.possible_agents, 0.0)
        self.env.reset(seed=int(luck.integers(1 << 31)))
        self._book()

    @property
    def turn(self) -> int | None:
        """The seat of the agent that is selected."""
        return self.env.possible_agents.index(self.env.agent_selection) if self.env.agents else None

    def told(self, seat: int) -> str:
        """Return what the agent observes, and the moves it may make."""
        observation = self.env.observe(self.env.agent_selection)
        if isinstance(observation, str):
            return observation
        moves = [f"[{move}]" for move in np.flatnonzero(observation["action_mask"])]
        return f"{_board(observation['observation'])}\nAvailable moves: {' '.join(moves)}"

    def move(self, seat: int, action: str) -> bool:
        """Make a move; one that is not allowed ends the game as PettingZoo's wrappers have it."""
        number = action.strip("[]")
        taken = action if self.takes_text else int(number) if number.isdecimal() else -1
        if not self.env.action_space(self.env.agent_selection).contains(taken):
            return False
        self.env.step(taken)
        self._book()
        return True

    def earned(self, seat: int) -> float:
        """Return what an agent has earned."""
        return self._earned[self.env.possible_agents[seat]]

    def ending(self, seat: int) -> str:
        """Return that the game is over."""
        return "The game is over."

    def _book(self) -> None:
        """Take note of what agents earned, and let those go that are done."""
        while self.env.agents:
            _, reward, terminated, truncated, _ = self.env.last(observe=False)
            self._earned[self.env.agent_selection] += float(reward)
            if not (terminated or truncated):
                return
            self.env.step(None)


class PettingZooEnv(SeatedEnv):
    """A game of PettingZoo for two players and more.

    Args:
        game: Its module in ``pettingzoo.classic``: ``"tictactoe_v3"``, ``"connect_four_v3"``; or ``module:function`` of
            whatever makes an ``AECEnv``.
        game_options: Its options.
        seats: Who has each seat; see :class:`roll.envs.seated.SeatedEnv`.
        shuffle: Whether the seed draws who has which seat.
        worst: The least that the game pays for a move. A response without a move earns it.
        max_steps: The episode is truncated after so many moves of a seat.
        format_penalty: Added to the reward of a response without a move.
        env_instruction: Replaces the instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such game, its observations cannot be told, or an option cannot work.
        MissingDependencyError: If pettingzoo is not installed.
    """

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        seats: Sequence[Player] = (POLICY, "random"),
        shuffle: bool = True,
        worst: float = -1.0,
        max_steps: int | None = 50,
        format_penalty: float = 0.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        options = json.dumps(dict(game_options or {}), sort_keys=True)
        _check(game, options)
        table = PettingZooTable(game, options)
        count = getattr(table.env.action_space(table.env.possible_agents[0]), "n", None)
        super().__init__(
            table,
            seats,
            shuffle,
            actions=None if count is None else [f"[{move}]" for move in range(int(count))],
            action_pattern=None if count is None else MOVE_PATTERN,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction or _INSTRUCTION.format(game=game.partition("_v")[0], move=0),
            render_mode=render_mode,
        )


def _made(name: str, options: str) -> Any:
    if ":" in name:
        return resolve_name(name)(**json.loads(options))
    game = library(f"{_PACKAGE}.{name}", "pettingzoo")
    # A policy that learns makes illegal moves by the thousand, and the rewards tell of each.
    logging.getLogger("pettingzoo.utils.env_logger").addFilter(_tells_news)
    return game.env(**json.loads(options))


def _tells_news(record: logging.LogRecord) -> bool:
    return "Illegal move made" not in record.getMessage()


@lru_cache(maxsize=64)
def _check(name: str, options: str) -> None:
    """Begin a game once, for what is wrong with it."""
    if ":" not in name:
        modules = iter_modules(library(_PACKAGE, "pettingzoo").__path__)
        known = [module.name for module in modules if "_v" in module.name]
        if name not in known:
            raise EnvConfigError(f"game={name!r} is not in {_PACKAGE}. {did_you_mean(name, known)}")
    try:
        table = PettingZooTable(name, options)
        table.begin(np.random.default_rng(0))
        table.told(0 if table.turn is None else table.turn)
    except (EnvConfigError, ImportError):
        raise
    except Exception as error:
        raise EnvConfigError(f"game={name!r}, game_options={options}: {type(error).__name__}: {error}") from error


def _board(planes: Any) -> str:
    """Return a board as text, from ``[rows, columns, 2]``: own pieces, and those of the other player.

    Raises:
        EnvConfigError: It is no such board.
    """
    board = np.asarray(planes)
    if board.ndim != 3 or board.shape[2] != 2:
        raise EnvConfigError(f"observations have the shape {list(board.shape)}: they are no board of two players")
    marks = board[:, :, 0] + 2 * board[:, :, 1]
    return "\n".join("".join(_MARKS[int(mark)] for mark in row) for row in marks)
