"""Games with several seats: what such a game is, who has its seats, and the table at which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np

from roll.common.unavailable import UnavailableError
from roll.envs.seat_programs import Program, instructed
from roll.tools import Toolbox

MOST_MOVES: Final = 50
"""Moves of programs between two of other seats, most of them refused, after which a game is given up."""


class SeatedGame(Protocol):
    """A game for several seats that take turns: PettingZoo's agent-environment cycle, with words.

    ``turn`` is its ``agent_selection``, ``told`` its ``observe``, ``move`` its ``step``, ``earned`` its rewards.
    """

    @property
    def seats(self) -> Sequence[str]:
        """Names of the seats, in their order; they are numbered from 0."""
        ...

    def begin(self, luck: np.random.Generator) -> None:
        """Begin a game; all its luck comes from ``luck``, or from a seed drawn of it."""
        ...

    @property
    def turn(self) -> int | None:
        """The seat that is to move; ``None`` when the game is over."""
        ...

    def told(self, seat: int) -> str:
        """Return what the game has said to the seat that is to move since that was last asked."""
        ...

    def move(self, seat: int, action: str) -> bool:
        """Make a move; return whether it was one, and not refused."""
        ...

    def earned(self, seat: int) -> float:
        """Return what a seat has earned, of the whole game so far."""
        ...

    def ending(self, seat: int) -> str:
        """Return what is said to a seat when the game is over."""
        ...


@runtime_checkable
class SpokenGame(SeatedGame, Protocol):
    """A game of free speech in which each seat has an instruction of its own, and may have tools."""

    def instruction(self, seat: int) -> str:
        """Return what a seat is told once, before anything else."""
        ...

    def toolbox(self, seat: int) -> Toolbox | None:
        """Return the tools of a seat in the game that has begun."""
        ...

    def messages(self, seat: int) -> list[dict[str, str]]:
        """Return what :meth:`told` returned last, as messages: what its tools return, or what the others said."""
        ...


class Table:
    """A game that is played, and the programs among its players.

    Args:
        game: The game.
        programs: What makes the program of each seat that has one.
    """

    def __init__(self, game: SeatedGame, programs: Mapping[int, Callable[[], Program]]) -> None:
        self.game = game
        self._make = dict(programs)
        self._programs: dict[int, Program] = {}

    @property
    def programs(self) -> set[int]:
        """The seats that programs have."""
        return set(self._make)

    def begin(self, luck: np.random.Generator) -> None:
        """Begin a game, in which programs may move first."""
        self.close()
        self._luck = luck
        self._programs = {seat: make() for seat, make in self._make.items()}
        self.game.begin(luck)
        self._instructed: set[int] = set()
        self._programs_move()

    def move(self, seat: int, action: str) -> bool:
        """Make a move, and let programs answer; return whether the game took it.

        Raises:
            RuntimeError: A program cannot play this game, or failed; it comes from the program's own error.
            UnavailableError: What a program needs is not there: the endpoint that it asks, say.
        """
        taken = self.game.move(seat, action)
        self._programs_move()
        return taken

    def close(self) -> None:
        """Let go of the programs."""
        for program in self._programs.values():
            getattr(program, "close", lambda: None)()
        self._programs = {}

    def _programs_move(self) -> None:
        """Let programs move until it is somebody else's turn, or the game is over."""
        for _ in range(MOST_MOVES):
            seat = self.game.turn
            if seat is None or seat not in self._programs:
                return
            # It may take its time, while other games go on.
            self.game.move(seat, self._moved(seat))
        raise RuntimeError(f"the programs at the table made {MOST_MOVES} moves in a row: they cannot play this game")

    def _moved(self, seat: int) -> str:
        """Return the move of a program."""
        told = self._instruction(seat) + self.game.told(seat)
        try:
            return self._programs[seat](told, self._luck)
        except UnavailableError as error:
            raise UnavailableError(f"the program of seat {self.game.seats[seat]}: {error}") from error
        except (Exception, SystemExit) as error:
            # With the program's own lines, which are what its author looks for.
            message = f"the program of seat {self.game.seats[seat]}: {type(error).__name__}: {error}"
            raise RuntimeError(message).with_traceback(error.__traceback__) from error

    def _instruction(self, seat: int) -> str:
        """Return what a program in a conversation is told before its first move, tools included."""
        if seat in self._instructed or not isinstance(self.game, SpokenGame):
            return ""
        self._instructed.add(seat)
        return instructed(self._programs[seat], self.game.instruction(seat), self.game.toolbox(seat))
