"""The teachers of ``toy_sokoban``: what they would do at every turn of a game, as odds of the four moves.

The perfect teacher knows the number of moves that every position is away from the solution. The near-sighted teacher
looks four moves ahead: farther from the solution it walks straight at the box and pushes it wherever it then goes, and
more than half of its moves are random. A policy that imitates it plays badly in a way that only looking further ahead
cures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from roll.envs import make
from roll.envs.sokoban import SokobanEnv
from roll.envs.sokoban_levels import Level, cells_of
from roll.envs.sokoban_solver import DIRECTIONS
from roll.models.toy.demonstrations import Encode
from roll.rendering.chat import ChatRenderer

TAG = "SimpleSokoban"
SYSTEM = "Solve the Sokoban puzzle."

SIGHT = 4
"""Moves that the near-sighted teacher looks ahead."""
NEAR_SIGHTED, RANDOM = 0.75, 0.65
"""Shares of its play: of moves that are not random, of all moves."""
NOISE = 0.25
"""Random moves in the games of the perfect teacher: they vary the boards."""
FAULT_COST = 2.0
"""How strongly the perfect teacher prefers a better move: a move that loses n moves has ``exp(-2n)`` times the odds."""

Moves = tuple[float, float, float, float]
"""A number for each move: up, down, left, right."""
DEAD = float("inf")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A level with one box, and how far each of its positions is from the solution.

    Attributes:
        level: The level as it begins.
        target: The target's cell.
        left: Fewest moves to the solution by ``(box, player)``; a position that is missing has no solution.
    """

    level: Level
    target: int
    left: dict[tuple[int, int], int]

    def after(self, box: int, player: int, move: int) -> tuple[int, int]:
        """Return box and player after a move, which changes nothing where something is in the way."""
        delta = self.level.deltas[move]
        there = player + delta
        if there == box:
            return (box + delta, there) if self.level.floor >> box + delta & 1 else (box, player)
        return (box, there if self.level.floor >> there & 1 else player)

    def losses(self, box: int, player: int) -> Moves:
        """Return how many moves each move loses: 0 for the best ones, infinity where the level is lost."""
        here = self.left[box, player]
        after = [self.after(box, player, move) for move in range(4)]
        lost = [0 if state[0] == self.target else self.left.get(state, DEAD) + 1 - here for state in after]
        return (lost[0], lost[1], lost[2], lost[3])


def measure(level: Level) -> Puzzle:
    """Walk backwards from the solved positions of a level with one box."""
    target = level.targets.bit_length() - 1
    floor = set(cells_of(level.floor))
    left: dict[tuple[int, int], int] = {}
    frontier = [(target - delta, target - 2 * delta) for delta in level.deltas]
    frontier = [state for state in frontier if floor.issuperset(state)]
    moves = 1
    while frontier:
        left.update(dict.fromkeys(frontier, moves))
        moves += 1
        following: dict[tuple[int, int], None] = {}
        for box, player in frontier:
            for delta in level.deltas:
                came_from = player - delta
                if came_from not in floor:
                    continue
                if came_from != box and (box, came_from) not in left:
                    following[box, came_from] = None
                # Or this move pushed the box, from where the player is now; a box on the target ends the game.
                if player + delta == box and player != target and (player, came_from) not in left:
                    following[player, came_from] = None
        frontier = list(following)
    return Puzzle(level, target, left)


Teacher = Callable[[Puzzle, int, int], np.ndarray]
"""Returns the odds of the four moves, ``[4]``, where box and player are on these cells."""


def perfect(puzzle: Puzzle, box: int, player: int) -> np.ndarray:
    """Prefer the moves that lose least."""
    odds = np.exp(-FAULT_COST * np.array(puzzle.losses(box, player)))
    return odds / odds.sum()


def near_sighted(puzzle: Puzzle, box: int, player: int) -> np.ndarray:
    """Play well near the solution, walk at the box elsewhere, and often move at random."""
    best = _even(np.array(puzzle.losses(box, player)) == 0)
    return RANDOM / 4 + (1 - RANDOM) * (NEAR_SIGHTED * hasty(puzzle, box, player) + (1 - NEAR_SIGHTED) * best)


def hasty(puzzle: Puzzle, box: int, player: int) -> np.ndarray:
    """Play well near the solution, and walk at the box elsewhere."""
    if puzzle.left[box, player] <= SIGHT:
        return _even(np.array(puzzle.losses(box, player)) == 0)
    return _even(_nearest_to_box(puzzle.level, box, player))


def _nearest_to_box(level: Level, box: int, player: int) -> np.ndarray:
    row, column = divmod(box, level.stride)
    distances = [
        abs((player + delta) // level.stride - row) + abs((player + delta) % level.stride - column)
        for delta in level.deltas
    ]
    return np.array(distances) == min(distances)


def _even(chosen: np.ndarray) -> np.ndarray:
    return chosen / chosen.sum()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A game, and what a teacher would have done at each of its turns.

    Attributes:
        token_ids: The conversation up to the last answer.
        answers: For each turn the place of its move among ``token_ids``; the answer is one token before and two after.
        odds: The teacher's odds of the moves, ``[turns, 4]``.
    """

    token_ids: list[int]
    answers: list[int]
    odds: np.ndarray


def demonstrations(
    renderer: ChatRenderer, encode: Encode, teacher: Teacher, *, noise: float, random: np.random.Generator
) -> Iterator[Demonstration]:
    """Yield games without end, each played by the teacher until it is solved, lost, or out of turns.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        teacher: Who is imitated, and who plays.
        noise: Probability that a move is played at random all the same.
        random: Draws levels and moves.
    """
    env = make(TAG)
    assert isinstance(env, SokobanEnv)
    answers = [encode(f"<answer>{name}</answer>") + [renderer.stop_token_ids[0]] for name in DIRECTIONS]
    while True:
        board, _ = env.reset(seed=int(random.integers(2**62)))
        puzzle = measure(env.state())
        state = (puzzle.level.boxes.bit_length() - 1, puzzle.level.player)
        tokens = renderer.initial_ids([{"role": "system", "content": SYSTEM}, {"role": "user", "content": board}])
        places, odds = [], []
        while True:
            likely = teacher(puzzle, *state)
            move = int(random.integers(4)) if random.random() < noise else int(random.choice(4, p=likely))
            places.append(len(tokens) + 1)
            odds.append(likely)
            tokens += answers[move]
            state = puzzle.after(*state, move)
            board, _, terminated, truncated, _ = env.step(f"<answer>{DIRECTIONS[move]}</answer>")
            if terminated or truncated or state not in puzzle.left:
                break
            bridge = renderer.next_ids(answers[move], [{"role": "user", "content": board}])
            assert bridge is not None, "the toy template extends its history"
            tokens += bridge
        yield Demonstration(tokens, places, np.array(odds))
