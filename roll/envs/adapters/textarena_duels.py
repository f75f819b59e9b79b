"""The games of TextArena for two players: the policy has one seat, and somebody else the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roll.envs.adapters.opponents import Opponent, opponent_of
from roll.envs.adapters.textarena_games import MOVE_PATTERN, TextArenaEnv
from roll.envs.base import Outcome
from roll.envs.errors import EnvConfigError

_MOST_ANSWERS: Final = 50
"""Moves of the opponent between two of the policy, most of them refused."""


class TextArenaDuelEnv(TextArenaEnv):
    """A game of TextArena for two players: the policy has one seat, a program or a model the other.

    The game pays at its end: 1 for a win, -1 for a loss, 0 for a draw. A move that the game refuses is the policy's
    again; after another it loses, as the game has it. If it is the opponent that loses so, the policy wins.

    Args:
        game: Id of the game, such as ``"TicTacToe-v0"``.
        game_options: Options of the game itself.
        opponent: ``"random"``, which chooses among the moves that the game offers, ``"module:function"`` (of what it
            is told, and a NumPy generator), or an endpoint (:class:`roll.envs.adapters.opponents.EndpointOpponent`).
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
        opponent: str | Mapping[str, Any] = "random",
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
        self._new_opponent, self._fixed_seat = opponent_of(opponent), seat
        self._opponent: Opponent = self._new_opponent()
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
        self.close()
        self._opponent = self._new_opponent()
        return super().start()

    def close(self) -> None:
        """Let go of the opponent."""
        getattr(self._opponent, "close", lambda: None)()

    def _others(self) -> bool:
        """Let the opponent move until it is the policy's turn; return whether the game is over."""
        for _ in range(_MOST_ANSWERS):
            with self._luck.drawn():
                if self.game.state.current_player_id == self.seat:
                    return False
                told = self._said()
            move = self._opponent(told, self.np_random)  # may take its time, while other games go on
            with self._luck.drawn():
                over, _ = self.game.step(action=move)
            if over:
                return True
        raise RuntimeError(f"the opponent of {self.name} made {_MOST_ANSWERS} moves in a row: it cannot play this game")

    def act(self, action: str) -> Outcome:
        """Make a move, and let the opponent answer."""
        outcome = super().act(action)
        score = float(outcome.terminated and sum(outcome.reward_parts.values()))
        metrics = {"won": float(score > 0), "drawn": float(outcome.terminated and score == 0), "lost": float(score < 0)}
        return outcome._replace(metrics=metrics)
