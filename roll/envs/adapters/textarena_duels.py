"""The games of TextArena for two players and more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roll.envs.adapters.textarena_games import INSTRUCTION, MOVE_PATTERN, Luck, begun, check, said
from roll.envs.seated import POLICY, Player, SeatedEnv


class TextArenaTable:
    """A game of TextArena for several players; see :class:`roll.envs.seats.SeatedGame`.

    A move that the game refuses is the player's again; after another it loses, as the game has it.

    Args:
        name: Its id.
        options: Options of the game, as JSON.
        players: How many play.
        longest: Most characters of what a player is told; what is older is left out.
    """

    def __init__(self, name: str, options: str, players: int, longest: int) -> None:
        self.name, self.seats = name, tuple(map(str, range(players)))
        self._options, self._longest = options, longest
        self._over = True

    def begin(self, luck: np.random.Generator) -> None:
        """Make the game and reset it with a seed drawn from ``luck``."""
        self._luck = Luck(int(luck.integers(1 << 31)))
        self._over = False
        self._rewards: dict[int, float] = {}
        self._endings: dict[int, str] = {}
        with self._luck.drawn():
            self.game = begun(self.name, self._options, self._luck.seed, len(self.seats))

    @property
    def turn(self) -> int | None:
        """The player that is to move."""
        return None if self._over else int(self.game.state.current_player_id)

    def told(self, seat: int) -> str:
        """Return what the game has said to the player that is to move, without the player's own words."""
        with self._luck.drawn():
            return said(self.game, self._longest)

    def move(self, seat: int, action: str) -> bool:
        """Make a move; return whether it was one."""
        with self._luck.drawn():
            self._over, _ = self.game.step(action=action)
            refused = not self._over and bool(self.game.state.error_count)
            rewards, info = self.game.close() if self._over else ({}, {})
        self._rewards = {int(player): float(reward) for player, reward in rewards.items()}
        self._endings = {int(player): str(each.get("reason") or "") for player, each in info.items()}
        return not refused

    def earned(self, seat: int) -> float:
        """Return what the game paid to a player: something at its end only."""
        return self._rewards.get(seat, 0.0)

    def ending(self, seat: int) -> str:
        """Return why the game is over."""
        return self._endings.get(seat) or "The end."


class TextArenaDuelEnv(SeatedEnv):
    """A game of TextArena for two players or more.

    The game pays at its end: 1 for a win, -1 for a loss, 0 for a draw. A move that the game refuses is the same
    player's again; after another it loses, as the game has it.

    Args:
        game: Id of the game, such as ``"TicTacToe-v0"``.
        game_options: Options of the game itself.
        seats: Who has each seat, in their order: ``policy``; ``random``, which chooses among the moves that the game
            offers, ``module:function`` (of what the seat is told, and a NumPy generator), or an endpoint
            (:class:`roll.envs.seat_programs.EndpointProgram`); or the name of one of the run's ``opponents``.
        shuffle: Whether the seed draws who has which seat.
        actions: The moves there are, with their brackets; ``None`` where a move is free text.
        worst: The least that the game pays for a move. A response without a move earns it.
        longest: Most characters of an observation; what is older is left out.
        max_steps: The episode is truncated after so many moves of a seat.
        format_penalty: Added to the reward of a response without a move.
        action_pattern: Finds the move in a response; empty: the response is the move.
        env_instruction: Replaces the instruction; the rules are in the first observation.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such game or program, or an option cannot work.
        MissingDependencyError: If textarena is not installed.
    """

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        seats: Sequence[Player] = (POLICY, "random"),
        shuffle: bool = True,
        actions: Sequence[str] | None = None,
        worst: float = -1.0,
        longest: int = 4000,
        max_steps: int | None = 50,
        format_penalty: float = 0.0,
        action_pattern: str | None = MOVE_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        options = json.dumps(dict(game_options or {}), sort_keys=True)
        check(game, options, len(seats))
        super().__init__(
            TextArenaTable(game, options, len(seats), int(longest)),
            seats,
            shuffle,
            actions=actions,
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=worst,
            max_steps=max_steps,
            env_instruction=env_instruction or INSTRUCTION.format(example=actions[0] if actions else "[your move]"),
            render_mode=render_mode,
        )
