"""A game with several seats as an environment for one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from roll.envs.base import Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.envs.seat_programs import Program, is_program, program_of
from roll.envs.seats import SeatedGame, Table

MANAGER: Final = "roll.env_managers.seats.SeatsEnvManager"
POLICY: Final = "policy"
"""Who is trained."""

Player = str | Mapping[str, Any]
"""``policy``; ``random``, a ``module:function`` or an endpoint; or the name of one of the run's ``opponents``."""


class SeatedEnv(TextEnv):
    """A game for several, seen from one of the seats that the policy has.

    In a run, all seats are played: :class:`roll.env_managers.seats.SeatsEnvManager` has an episode for each that a
    policy or an opponent of the run has. Where there is no run (``roll envs play``, certificates, Gymnasium), it is an
    environment for the first seat of the policy, and programs (:meth:`stand_in`) are everybody who would need a model.

    Args:
        game: The game, which has not begun.
        seats: Who has each seat.
        shuffle: Whether the seed draws who has which seat.
        **text: Of :class:`TextEnv`.

    Raises:
        EnvConfigError: There are more or fewer seats, nobody is trained, or there is no such program.
    """

    env_manager_cls = MANAGER

    graded_by_rewards: bool = False
    """Whether the game itself pays nobody, and verifiers of the run (``rewards``) grade each seat."""

    def __init__(self, game: SeatedGame, seats: Sequence[Player], shuffle: bool, **text: Any) -> None:
        super().__init__(**text)
        if len(seats) != len(game.seats):
            raise EnvConfigError(f"seats={list(seats)}: the game has {len(game.seats)}: {', '.join(game.seats)}")
        if POLICY not in seats:
            raise EnvConfigError(f"seats={list(seats)}: one of them must be {POLICY!r}, which is trained")
        self.game, self.text = game, text
        self._given, self._shuffle = tuple(seats), shuffle
        self._programs = {number: program_of(each) for number, each in enumerate(seats) if is_program(each)}
        self.players: tuple[Player, ...] = self._given
        self.seat = self._given.index(POLICY)
        self.table = Table(game, {})

    @property
    def opponents(self) -> list[str]:
        """The names of those who only a run has."""
        return sorted({str(each) for each in self._given if each != POLICY and not is_program(each)})

    def stand_in(self, seat: int) -> Callable[[], Program]:
        """Return what makes the program that stands in for a model where there is no run: random moves."""
        return program_of("random")

    def deal(self, seed: int | None) -> Table:
        """Begin a game whose seats are played by whoever has them; programs that are first move."""
        self._seeded(seed)
        self.table = self._table(stand_ins=False)
        self.table.begin(self.np_random)
        return self.table

    def start(self) -> str:
        """Begin a game in which programs have all other seats.

        Raises:
            RuntimeError: It was over before the policy moved.
        """
        self.table.close()
        self.table = self._table(stand_ins=True)
        self.table.begin(self.np_random)
        if self.game.turn is None:
            raise RuntimeError("the game was over before the policy moved")
        return self.game.told(self.seat)

    def act(self, action: str) -> Outcome:
        """Make a move, and let the others answer."""
        before = self.game.earned(self.seat)
        return outcome(self.game, self.seat, self.table.move(self.seat, action), before)

    def close(self) -> None:
        """Let go of the programs."""
        self.table.close()

    def _table(self, stand_ins: bool) -> Table:
        """Draw who has which seat, and seat the programs."""
        order = list(range(len(self._given)))
        if self._shuffle:
            order = [int(each) for each in self.np_random.permutation(len(self._given))]
        self.players = tuple(self._given[each] for each in order)
        self.seat = self.players.index(POLICY)
        programs: dict[int, Callable[[], Program]] = {
            seat: self._programs[each] for seat, each in enumerate(order) if each in self._programs
        }
        if stand_ins:
            others = set(range(len(order))) - {self.seat}
            programs |= {seat: self.stand_in(seat) for seat in others - set(programs)}
        return Table(self.game, programs)


def outcome(game: SeatedGame, seat: int, taken: bool, before: float) -> Outcome:
    """Return what came of a move of a seat, when it is that seat's turn again or the game is over.

    Args:
        game: The game.
        seat: Who moved.
        taken: Whether the game took the move.
        before: What the seat had earned before it.
    """
    over = game.turn is None
    score = game.earned(seat)
    told = game.ending(seat) if over else game.told(seat)
    metrics = {"won": float(over and score > 0), "drawn": float(over and score == 0), "lost": float(over and score < 0)}
    won = over and score > 0
    return Outcome(told, {"game": score - before}, terminated=over, success=won, effective=taken, metrics=metrics)
