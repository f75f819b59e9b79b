"""FrozenLake as a text environment, with the rules of Gymnasium's ``FrozenLake-v1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.envs.lookups import LONGEST_SIDE, legend, merged_lookup, merged_vocab
from roll.envs.spaces import board_space

PLAYER, FROZEN, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)

GRID_LOOKUP = {0: "P", 1: "_", 2: "O", 3: "G", 4: "X", 5: "√"}
GRID_MEANINGS = {0: "player", 1: "ice", 2: "hole", 3: "goal", 4: "player in hole", 5: "player on goal"}
ACTION_LOOKUP = {0: "Left", 1: "Down", 2: "Right", 3: "Up"}

_MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""(row, column) of left, down, right, up: neighbours in this order are the two ways to slip."""
_TILES = ("player_on_ice", "ice", "hole", "goal", "player_in_hole", "player_on_goal")


class FrozenLakeEnv(TextEnv):
    """Walk over the ice to the goal without falling into a hole.

    On slippery ice a move goes in the chosen direction with probability ``success_rate`` and otherwise, with equal
    chances, to one of the two sides.

    Args:
        size: Side of the lake, at least 2.
        p: Probability that a cell is ice rather than a hole.
        is_slippery: Whether moves may slip.
        success_rate: Probability of the chosen direction on slippery ice.
        own_luck: Whether each member of a group slips by itself. Otherwise members that do the same slip alike, so that
            a group cannot tell a bad move from bad luck.
        random_start: Whether an episode begins on any cell of ice instead of on the map's start ("exploring starts"):
            a policy also practises on cells that it would reach by a slip alone.
        max_steps: The episode is truncated after so many steps.
        grid_lookup: Symbol of each cell code: 0 player, 1 ice, 2 hole, 3 goal, 4 player in hole, 5 player on goal. May
            be partial.
        grid_vocab: Meaning of each symbol, for the legend. May be partial.
        action_lookup: Names of the actions: 0 left, 1 down, 2 right, 3 up. May be partial.
        map_seed: Fixes the map for all episodes; ``None`` makes a new map at every reset.
        desc: A map as rows of ``S`` (start), ``F`` (ice), ``H`` (hole) and ``G`` (goal) instead of a random one.
        format_penalty: Added to the reward of a response without a valid action.
        action_pattern: Finds the action in a response; empty: the response is the action.
        step_penalty: Added to the reward of every step, also of an invalid one.
        goal_reward: Added when the goal is reached.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` or ``None``.

    Raises:
        EnvConfigError: If an option cannot work.
    """

    is_quick = True

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        own_luck: bool = False,
        random_start: bool = False,
        max_steps: int | None = 100,
        grid_lookup: Mapping[Any, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        action_lookup: Mapping[Any, str] | None = None,
        map_seed: int | None = None,
        desc: Sequence[str] | None = None,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        step_penalty: float = 0.0,
        goal_reward: float = 1.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        self.size, self.p = int(size), _probability("p", p)
        if not 2 <= self.size <= LONGEST_SIDE:
            raise EnvConfigError(f"size={size}: must be from 2 to {LONGEST_SIDE}")
        self.is_slippery, self.success_rate = bool(is_slippery), _probability("success_rate", success_rate)
        self.has_own_luck = bool(own_luck)
        self.random_start = bool(random_start)
        self.map_seed = map_seed
        self.desc = None if desc is None else _checked_map(desc)
        self.step_penalty, self.goal_reward = float(step_penalty), float(goal_reward)
        self.grid_lookup = merged_lookup("grid_lookup", GRID_LOOKUP, grid_lookup)
        self.grid_vocab = merged_vocab(self.grid_lookup, GRID_MEANINGS, grid_vocab)
        rows, columns = (len(self.desc), len(self.desc[0])) if self.desc else (self.size, self.size)
        super().__init__(
            actions=tuple(merged_lookup("action_lookup", ACTION_LOOKUP, action_lookup).values()),
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
            observation_space=board_space(set(self.grid_lookup.values()), rows, columns),
        )
        self.lake: tuple[str, ...] = ()
        self.position = (0, 0)

    # TextEnv ----------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Make or reuse the map and put the player on its start."""
        if self.desc is not None:
            self.lake = self.desc
        elif self.map_seed is None:
            self.lake = generate_lake(self.np_random, self.size, self.p)
        elif not self.lake:
            self.lake = generate_lake(np.random.default_rng(self.map_seed), self.size, self.p)
        self.position = self._any_ice() if self.random_start else _find(self.lake, "S")
        return self._observe()

    def act(self, action: str) -> Outcome:
        """Move one cell, perhaps not where the player wanted."""
        direction = (self.actions or ()).index(action)
        if self.is_slippery:
            direction = self._slip(direction)
        row = min(max(self.position[0] + _MOVES[direction][0], 0), len(self.lake) - 1)
        column = min(max(self.position[1] + _MOVES[direction][1], 0), len(self.lake[0]) - 1)
        moved = (row, column) != self.position
        self.position = (row, column)
        cell = self.lake[row][column]
        parts = {"step": self.step_penalty}
        if cell == "G":
            parts["goal"] = self.goal_reward
        return Outcome(self._observe(), parts, cell in "GH", cell == "G", moved)

    def idle(self) -> dict[str, float]:
        """Return the step penalty: saying nothing valid must not be cheaper than moving."""
        return {"step": self.step_penalty}

    def solution(self) -> list[str] | None:
        """Return the fewest moves to the goal; ``None`` on slippery ice, where no moves are certain."""
        path = None if self.is_slippery else shortest_path(self.lake, self.position)
        return None if path is None else [(self.actions or ())[direction] for direction in path]

    def describe(self) -> str:
        """Return the rules and the legend."""
        slip = (
            f" The ice is slippery: you move where you want with probability {self.success_rate:.2f} and slip to "
            "one of the two sides otherwise."
            if self.is_slippery
            else ""
        )
        return (
            "You are crossing a frozen lake: walk to the goal and do not fall into a hole. You move one cell at a time "
            f"and stay in place at the edge.{slip}\nSymbols: {legend(self.grid_vocab)}."
        )

    def board(self) -> np.ndarray:
        """Return the cell codes, ``uint8 [rows, columns]``."""
        codes = {"S": FROZEN, "F": FROZEN, "H": HOLE, "G": GOAL}
        board = np.array([[codes[cell] for cell in row] for row in self.lake], dtype=np.uint8)
        player = {FROZEN: PLAYER, HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_ON_GOAL}
        board[self.position] = player[int(board[self.position])]
        return board

    def image(self) -> np.ndarray:
        """Return the lake in tiles, ``uint8 [rows * 32, columns * 32, 3]``."""
        from roll.envs.tiles import board_image

        return board_image([[_TILES[code] for code in row] for row in self.board().tolist()])

    # Inside -----------------------------------------------------------------------------------------------------

    def _any_ice(self) -> tuple[int, int]:
        """Return a cell to begin on from which the goal can be reached."""
        cells = [(row, column) for row, line in enumerate(self.lake) for column, _ in enumerate(line)]
        good = [cell for cell in cells if self.lake[cell[0]][cell[1]] in "SF" and shortest_path(self.lake, cell)]
        return good[int(self.np_random.integers(len(good)))]

    def _slip(self, direction: int) -> int:
        draw = self.np_random.random()
        if draw < self.success_rate:
            return direction
        half = (1.0 - self.success_rate) / 2
        return (direction + (1 if draw < self.success_rate + half else -1)) % 4

    def _observe(self) -> str:
        symbols = self.grid_lookup
        ground = {"S": symbols[FROZEN], "F": symbols[FROZEN], "H": symbols[HOLE], "G": symbols[GOAL]}
        rows = [[ground[cell] for cell in row] for row in self.lake]
        row, column = self.position
        code = {"H": PLAYER_IN_HOLE, "G": PLAYER_ON_GOAL}.get(self.lake[row][column], PLAYER)
        rows[row][column] = symbols[code]
        return "\n".join("".join(line) for line in rows)


def generate_lake(generator: np.random.Generator, size: int, p: float) -> tuple[str, ...]:
    """Return a random map from the top left to the bottom right corner that can be crossed.

    Args:
        generator: Source of all randomness.
        size: Side of the lake.
        p: Probability that a cell is ice. If 100 maps in a row cannot be crossed, a random path is opened.
    """
    for _ in range(100):
        lake = _with_corners((generator.random((size, size)) < p).tolist())
        if shortest_path(lake) is not None:
            return lake
    frozen = (generator.random((size, size)) < p).tolist()
    row = column = 0
    for down in generator.permutation([1] * (size - 1) + [0] * (size - 1)).tolist():
        row, column = row + down, column + 1 - down
        frozen[row][column] = True
    return _with_corners(frozen)


def shortest_path(lake: Sequence[str], start: tuple[int, int] | None = None) -> list[int] | None:
    """Return the fewest moves (0 left, 1 down, 2 right, 3 up) to the goal without slips, or ``None``.

    Args:
        lake: Rows of the map.
        start: (row, column) to start from; ``None`` for the map's own start.
    """
    start = start or _find(lake, "S")
    paths: dict[tuple[int, int], list[int]] = {start: []}
    frontier = [start]
    while frontier:
        following = []
        for row, column in frontier:
            if lake[row][column] == "G":
                return paths[row, column]
            for direction, (down, right) in enumerate(_MOVES):
                there = (row + down, column + right)
                inside = 0 <= there[0] < len(lake) and 0 <= there[1] < len(lake[0])
                if inside and there not in paths and lake[there[0]][there[1]] != "H":
                    paths[there] = [*paths[row, column], direction]
                    following.append(there)
        frontier = following
    return None


def _with_corners(frozen: list[list[bool]]) -> tuple[str, ...]:
    rows = [["F" if cell else "H" for cell in row] for row in frozen]
    rows[0][0], rows[-1][-1] = "S", "G"
    return tuple("".join(row) for row in rows)


def _find(lake: Sequence[str], letter: str) -> tuple[int, int]:
    row = next(index for index, line in enumerate(lake) if letter in line)
    return row, lake[row].index(letter)


def _probability(option: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise EnvConfigError(f"{option}={value}: must be a probability between 0 and 1")
    return float(value)


def _checked_map(desc: Sequence[str]) -> tuple[str, ...]:
    lake = tuple(str(row) for row in desc)
    letters = "".join(lake)
    if not lake or len({len(row) for row in lake}) != 1 or set(letters) - set("SFHG"):
        raise EnvConfigError(f"desc={list(desc)}: rows of equal length made of S, F, H and G")
    if letters.count("S") != 1 or "G" not in letters:
        raise EnvConfigError(f"desc={list(desc)}: needs exactly one S and at least one G")
    if shortest_path(lake) is None:
        raise EnvConfigError(f"desc={list(desc)}: no way from S to G without a hole")
    return lake
