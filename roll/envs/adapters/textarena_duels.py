"""The games of TextArena for two players, against an opponent that is a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Final

import numpy as np

from roll.envs.adapters.textarena_games import MOVE_PATTERN, TextArenaEnv
from roll.envs.base import Outcome
from roll.envs.errors import EnvConfigError

Opponent = Callable[[str, np.random.Generator], str]
"""Returns a move, with its brackets: of what the opponent is told since its last move, with luck of the episode."""

_MOVE: Final = re.compile(MOVE_PATTERN)
_OFFERED: Final = re.compile(r"(?:available|valid|legal|possible)[^:\n]*:(.*)", re.IGNORECASE | re.DOTALL)
_MOST_ANSWERS: Final = 50
"""Moves of the opponent between two of the policy, most of them refused."""


def random_move(told: str, luck: np.random.Generator) -> str:
    """Return one of the moves that the game lists last, or of any that it names; ``[0]`` where it names none."""
    offered = list(_OFFERED.finditer(told))
    moves = _MOVE.findall(offered[-1][1] if offered else told) or _MOVE.findall(told) or ["[0]"]
    return str(moves[int(luck.integers(len(moves)))])


_OPPONENTS: Final[Mapping[str, Opponent]] = {"random": random_move}


class TextArenaDuelEnv(TextArenaEnv):
    """A game of TextArena for two players: the policy has one seat, a program the other.

    The game pays at its end: 1 for a win, -1 for a loss, 0 for a draw. A move that the game refuses is the policy's
    again; after another it loses, as the game has it. If it is the opponent that loses so, the policy wins.

    Args:
        game: Id of the game, such as ``"TicTacToe-v0"``.
        game_options: Options of the game itself.
        opponent: ``"random"``, which chooses among the moves that the game offers, or ``"module:function"`` (of what
            it is told, and a NumPy generator).
        seat: The policy's, 0 or 1; ``None`` draws it from the seed.
        actions: The moves there are, with their brackets; ``None`` where a move is free text.
        worst: The least that the game pays for a move. A response without a move earns it.
        longest: Most characters of an observation; what is older is left out.
        max_steps: The episode is truncated after so many moves of the policy.
        format_penalty: Added to the reward of a response without a move.
        action_pattern: Finds the move in a response; empty: the response is the move.
        env_instruction: Replaces the instruction; the rules are in the first observation.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such game or opponent, or an option cannot work.
        MissingDependencyError: If textarena is not installed.
    """

    players = 2

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        opponent: str = "random",
        seat: int | None = None,
        actions: Sequence[str] | None = None,
        worst: float = -1.0,
        longest: int = 4000,
        max_steps: int | None = 50,
        format_penalty: float = 0.0,
        action_pattern: str | None = MOVE_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        if seat not in (None, 0, 1):
            raise EnvConfigError(f"seat={seat}: must be 0 or 1, or None to draw it")
        self._opponent, self._fixed_seat = _opponent(opponent), seat
        super().__init__(
            game=game,
            game_options=game_options,
            actions=actions,
            worst=worst,
            longest=longest,
            max_steps=max_steps,
            format_penalty=format_penalty,
            action_pattern=action_pattern,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Begin a game, in which the opponent may move first."""
        self.seat = int(self.np_random.integers(2)) if self._fixed_seat is None else self._fixed_seat
        return super().start()

    def _others(self) -> bool:
        """Let the opponent move until it is the policy's turn; return whether the game is over."""
        for _ in range(_MOST_ANSWERS):
            if self.game.state.current_player_id == self.seat:
                return False
            over, _ = self.game.step(action=self._opponent(self._said(), self.np_random))
            if over:
                return True
        raise RuntimeError(f"the opponent of {self.name} made {_MOST_ANSWERS} moves in a row: it cannot play this game")

    def act(self, action: str) -> Outcome:
        """Make a move, and let the opponent answer."""
        outcome = super().act(action)
        score = float(outcome.terminated and sum(outcome.reward_parts.values()))
        metrics = {"won": float(score > 0), "drawn": float(outcome.terminated and score == 0), "lost": float(score < 0)}
        return outcome._replace(metrics=metrics)


def _opponent(name: str) -> Opponent:
    if name in _OPPONENTS:
        return _OPPONENTS[name]
    try:
        found = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvConfigError(f"opponent={name!r}: {error}") from error
    if not callable(found):
        raise EnvConfigError(f"opponent={name!r}: name one of {', '.join(_OPPONENTS)}, or a module:function")
    return found
