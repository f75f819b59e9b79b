"""Games of Sokoban that a careless teacher played, to imitate, and moves that were compared: made when asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from roll.envs import make
from roll.envs.sokoban import SokobanEnv
from roll.envs.sokoban_solver import DIRECTIONS
from roll.models.toy.sokoban import SYSTEM, TAG, hasty, measure, perfect


class CarelessGames:
    """A data set (``data_args.custom_cls``) with the column ``messages``.

    The teacher knows the way to the solution and takes it, except for a share of moves that it makes at random, and one
    of moves that it makes in haste. A game ends where it is solved, lost, or out of turns.

    Args:
        games: How many.
        carelessness: Share of its moves that are random.
        seed: Of levels and moves.
        haste: Share of its moves that look only a few moves ahead (:func:`roll.models.toy.sokoban.hasty`): far from the
            solution these are the same mistake every time.
    """

    def __init__(self, games: int = 512, carelessness: float = 0.25, seed: int = 0, haste: float = 0.0) -> None:
        random = np.random.default_rng(seed)
        env = make(TAG)
        assert isinstance(env, SokobanEnv)
        self._rows = [{"messages": _play(env, carelessness, random, haste)} for _ in range(games)]

    def __len__(self) -> int:
        """Return the number of games."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return game ``index``."""
        return self._rows[index]


def _play(env: SokobanEnv, carelessness: float, random: np.random.Generator, haste: float) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}]
    for board, move, _ in _game(env, carelessness, random, haste):
        messages += [{"role": "user", "content": board}, {"role": "assistant", "content": _answer(move)}]
    return messages


class ComparedMoves:
    """A data set (``data_args.custom_cls``) of pairs: ``prompt``, ``chosen`` and ``rejected``.

    Somewhere in a game that a careless player played, two moves are compared: one on a shortest way to the solution,
    and one that is on none.

    Args:
        pairs: How many.
        carelessness: Share of the player's moves that are random.
        noise: Share of pairs that are the wrong way round.
        seed: Of levels, moves and comparisons.
    """

    def __init__(self, pairs: int = 512, carelessness: float = 0.5, noise: float = 0.0, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        env = make(TAG)
        assert isinstance(env, SokobanEnv)
        self._rows: list[dict[str, Any]] = []
        while len(self._rows) < pairs:
            played = _game(env, carelessness, random)
            turn = int(random.integers(len(played)))
            shares = played[turn][2]
            worse = np.flatnonzero(shares == 0)
            if not len(worse):
                continue
            moves = [int(random.choice(4, p=shares)), int(random.choice(worse))]
            chosen, rejected = moves if random.random() >= noise else reversed(moves)
            prompt = [{"role": "system", "content": SYSTEM}]
            for board, move, _ in played[:turn]:
                prompt += [{"role": "user", "content": board}, {"role": "assistant", "content": _answer(move)}]
            prompt.append({"role": "user", "content": played[turn][0]})
            self._rows.append({"prompt": prompt, "chosen": _said(chosen), "rejected": _said(rejected)})

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return pair ``index``."""
        return self._rows[index]


def _said(move: int) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": _answer(move)}]


def _answer(move: int) -> str:
    return f"<answer>{DIRECTIONS[move]}</answer>"


def _game(
    env: SokobanEnv, carelessness: float, random: np.random.Generator, haste: float = 0.0
) -> list[tuple[str, int, np.ndarray[Any, np.dtype[np.float64]]]]:
    """Return the turns of a game: the board, the move, and the shares of all moves of one who knows the way."""
    board, _ = env.reset(seed=int(random.integers(2**62)))
    puzzle = measure(env.state())
    state = puzzle.start
    turns = []
    while True:
        mood, shares = random.random(), np.asarray(perfect(puzzle, *state))
        likes = hasty(puzzle, *state) if mood < carelessness + haste else shares
        move = int(random.integers(4)) if mood < carelessness else int(random.choice(4, p=likes))
        turns.append((board, move, shares))
        state = puzzle.after(*state, move)
        board, _, terminated, truncated, _ = env.step(_answer(move))
        if terminated or truncated or state not in puzzle.left:
            return turns
