"""The teachers of ``toy_sokoban``: what they would do at every turn of a game, as odds of the four moves.

The perfect teacher knows the number of moves that every position is away from the solution. The near-sighted teacher
looks four moves ahead: farther from the solution it walks straight at the box and pushes it wherever it then goes, and
more than half of its moves are random. A policy that imitates it plays badly in a way that only looking further ahead
cures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
    """A level, and how far each of its positions is from the solution.

    Attributes:
        level: The level as it begins; it has as many boxes as targets.
        left: Fewest moves to the solution by ``(boxes, player)``, a bit set of cells and a cell; a position that is
            missing has no solution, or only one that is longer than what was measured.
    """

    level: Level
    left: dict[tuple[int, int], int]

    @property
    def start(self) -> tuple[int, int]:
        """The position in which the level begins."""
        return self.level.boxes, self.level.player

    def is_solved(self, boxes: int) -> bool:
        """Whether every box is on a target."""
        return boxes == self.level.targets

    def after(self, boxes: int, player: int, move: int) -> tuple[int, int]:
        """Return boxes and player after a move, which changes nothing where something is in the way."""
        delta = self.level.deltas[move]
        there = player + delta
        free = self.level.floor & ~boxes
        if not boxes >> there & 1:
            return boxes, there if free >> there & 1 else player
        beyond = there + delta
        return (boxes ^ (1 << there | 1 << beyond), there) if free >> beyond & 1 else (boxes, player)

    def losses(self, boxes: int, player: int) -> Moves:
        """Return how many moves each move loses: 0 for the best ones, infinity where the level is lost."""
        here = self.left[boxes, player]
        after = [self.after(boxes, player, move) for move in range(4)]
        lost = [0 if self.is_solved(state[0]) else self.left.get(state, DEAD) + 1 - here for state in after]
        return (lost[0], lost[1], lost[2], lost[3])


def measure(level: Level, within: int | None = None) -> Puzzle:
    """Walk backwards from the solved positions of a level.

    Args:
        level: With as many boxes as targets.
        within: Positions that need more moves than this are left out; ``None`` for all positions.
    """
    targets, floor, deltas = level.targets, level.floor, level.deltas
    left: dict[tuple[int, int], int] = {}
    frontier = list(dict.fromkeys(_before_the_last_push(level)))
    moves = 1
    while frontier and (within is None or moves <= within):
        left.update(dict.fromkeys(frontier, moves))
        moves += 1
        following: dict[tuple[int, int], None] = {}
        for boxes, player in frontier:
            free = floor & ~boxes
            for delta in deltas:
                came_from = player - delta
                if not free >> came_from & 1:
                    continue
                if (boxes, came_from) not in left:
                    following[boxes, came_from] = None
                # Or this move pushed a box, from where the player is now; the last box on a target ends the game.
                if boxes >> player + delta & 1:
                    before = boxes ^ (1 << player + delta | 1 << player)
                    if before != targets and (before, came_from) not in left:
                        following[before, came_from] = None
        frontier = list(following)
    return Puzzle(level, left)


def _before_the_last_push(level: Level) -> Iterator[tuple[int, int]]:
    """Yield the positions from which one push solves a level."""
    free = level.floor & ~level.targets
    for target in cells_of(level.targets):
        for delta in level.deltas:
            box, player = target - delta, target - 2 * delta
            if free >> box & 1 and free >> player & 1:
                yield level.targets ^ (1 << target | 1 << box), player


Teacher = Callable[[Puzzle, int, int], np.ndarray]
"""Returns the odds of the four moves, ``[4]``, where boxes and player are on these cells."""


def perfect(puzzle: Puzzle, boxes: int, player: int) -> np.ndarray:
    """Prefer the moves that lose least."""
    odds = np.exp(-FAULT_COST * np.array(puzzle.losses(boxes, player)))
    return odds / odds.sum()


def near_sighted(puzzle: Puzzle, boxes: int, player: int) -> np.ndarray:
    """Play well near the solution, walk at the box elsewhere, and often move at random."""
    best = _even(np.array(puzzle.losses(boxes, player)) == 0)
    return RANDOM / 4 + (1 - RANDOM) * (NEAR_SIGHTED * hasty(puzzle, boxes, player) + (1 - NEAR_SIGHTED) * best)


def hasty(puzzle: Puzzle, boxes: int, player: int) -> np.ndarray:
    """Play well near the solution, and walk at the box elsewhere."""
    if puzzle.left[boxes, player] <= SIGHT:
        return _even(np.array(puzzle.losses(boxes, player)) == 0)
    return _even(_nearest_to_box(puzzle.level, boxes, player))


def _nearest_to_box(level: Level, boxes: int, player: int) -> np.ndarray:
    """Tell the moves that bring the player, as the crow flies, nearest to a box that is not on a target, ``[4]``."""
    places = [divmod(box, level.stride) for box in cells_of(boxes & ~level.targets)]
    after = [divmod(player + delta, level.stride) for delta in level.deltas]
    distances = [min(abs(row - down) + abs(column - right) for down, right in places) for row, column in after]
    return np.array(distances) == min(distances)


def _even(chosen: np.ndarray) -> np.ndarray:
    return chosen / chosen.sum()


def sokoban(tag: str = TAG, **options: Any) -> SokobanEnv:
    """Return a game of Sokoban, with options in place of the tag's."""
    env = make(tag, **options)
    assert isinstance(env, SokobanEnv)
    return env


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
    renderer: ChatRenderer,
    encode: Encode,
    teacher: Teacher,
    *,
    noise: float,
    random: np.random.Generator,
    env: SokobanEnv | None = None,
) -> Iterator[Demonstration]:
    """Yield games without end, each played by the teacher until it is solved, lost, or out of turns.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        teacher: Who is imitated, and who plays.
        noise: Probability that a move is played at random all the same.
        random: Draws levels and moves.
        env: Whose levels are played; ``None`` for those of :data:`TAG`.
    """
    env = env or sokoban()
    answers = [encode(f"<answer>{name}</answer>") + [renderer.stop_token_ids[0]] for name in DIRECTIONS]
    while True:
        board, _ = env.reset(seed=int(random.integers(2**62)))
        puzzle = measure(env.state())
        state = puzzle.start
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
