"""Sokoban levels: the record, and generation by reverse play.

Cells are numbered ``row * stride + column`` with ``stride = width + 1``: the column after the last one is always wall,
so that neighbours never wrap around. Sets of cells are Python integers with one bit per cell, which makes flood fills a
few shifts; boards are too small for numpy to pay off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from roll.envs.errors import EnvConfigError

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)

UP, DOWN, LEFT, RIGHT = range(4)


@dataclass(frozen=True, slots=True)
class Level:
    """A Sokoban position.

    Attributes:
        height: Rows, border included.
        width: Columns, border included.
        floor: Bit set of all cells that are not wall.
        targets: Bit set of the target cells.
        boxes: Bit set of the cells with a box.
        player: Cell of the player.
    """

    height: int
    width: int
    floor: int
    targets: int
    boxes: int
    player: int

    @property
    def stride(self) -> int:
        """Distance between a cell and the one below it."""
        return self.width + 1

    @property
    def deltas(self) -> tuple[int, int, int, int]:
        """Cell offsets of up, down, left, right."""
        return (-self.stride, self.stride, -1, 1)

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return not self.boxes & ~self.targets

    def codes(self) -> list[list[int]]:
        """Return the board as ``[height][width]`` cell codes (0 wall ... 6 player on target)."""
        return [[self.code(row * self.stride + column) for column in range(self.width)] for row in range(self.height)]

    def code(self, cell: int) -> int:
        """Return the code of one cell."""
        bit = 1 << cell
        if not self.floor & bit:
            return WALL
        on_target = bool(self.targets & bit)
        if cell == self.player:
            return PLAYER_ON_TARGET if on_target else PLAYER
        if self.boxes & bit:
            return BOX_ON_TARGET if on_target else BOX
        return TARGET if on_target else FLOOR

    @classmethod
    def from_codes(cls, rows: Sequence[Sequence[int]]) -> Level:
        """Read a board of cell codes, ``[height][width]``.

        Raises:
            EnvConfigError: If the board is not rectangular, not closed by walls, has no box, more boxes than targets,
                or not exactly one player.
        """
        height, width = len(rows), len(rows[0]) if len(rows) else 0
        stride = width + 1
        floor = targets = boxes = 0
        players = []
        for row, line in enumerate(rows):
            if len(line) != width:
                raise EnvConfigError(f"level: row {row} has {len(line)} cells, row 0 has {width}")
            for column, value in enumerate(line):
                code, cell = int(value), row * stride + column
                if code not in range(7):
                    raise EnvConfigError(f"level: unknown cell code {value!r} at row {row}, column {column}")
                if code == WALL:
                    continue
                if row in (0, height - 1) or column in (0, width - 1):
                    raise EnvConfigError(f"level: the border must be wall, row {row}, column {column} is open")
                floor |= 1 << cell
                targets |= (code in (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)) << cell
                boxes |= (code in (BOX, BOX_ON_TARGET)) << cell
                if code in (PLAYER, PLAYER_ON_TARGET):
                    players.append(cell)
        if len(players) != 1:
            raise EnvConfigError(f"level: needs exactly one player, has {len(players)}")
        if not boxes or boxes.bit_count() > targets.bit_count():
            raise EnvConfigError(
                f"level: needs at least one box and a target for each, has {boxes.bit_count()} boxes and "
                f"{targets.bit_count()} targets"
            )
        return cls(height, width, floor, targets, boxes, players[0])


Push = tuple[int, int]
"""(cell, direction): the box leaves the cell in that direction, an index of up, down, left, right."""


def cells_of(bits: int) -> list[int]:
    """Return the cells of a bit set in rising order."""
    cells = []
    while bits:
        low = bits & -bits
        cells.append(low.bit_length() - 1)
        bits ^= low
    return cells


def flood(start: int, free: int, stride: int) -> int:
    """Return the cells of ``free`` that are connected with the bit set ``start``."""
    reached = start
    while True:
        grown = (reached | reached << 1 | reached >> 1 | reached << stride | reached >> stride) & free
        if grown == reached:
            return reached
        reached = grown


class _Draws:
    """Small random integers, drawn from numpy in blocks because one call per number would dominate."""

    __slots__ = ("_generator", "_numbers", "_next")

    BLOCK = 96

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._numbers: list[int] = []
        self._next = 0

    def below(self, bound: int) -> int:
        """Return an integer in ``[0, bound)``; the bias of the remainder is under ``bound / 2**31``."""
        if self._next == len(self._numbers):
            self._numbers, self._next = self._block(self.BLOCK), 0
        number = self._numbers[self._next]
        self._next += 1
        return number % bound

    def take(self, count: int) -> list[int]:
        """Return ``count`` integers in ``[0, 2**31)``."""
        first, end = self._next, self._next + count
        if end > len(self._numbers):
            self._numbers = self._block(max(self.BLOCK, count))
            first, end = 0, count
        self._next = end
        return self._numbers[first:end]

    def _block(self, size: int) -> list[int]:
        # Raw output: unlike the methods of Generator, numpy never changes it, and a seed keeps its level.
        return (self._generator.bit_generator.random_raw(size) >> np.uint64(33)).tolist()


@dataclass(frozen=True, slots=True)
class _Geometry:
    """What depends on the size of the room alone."""

    interior: tuple[int, ...]
    interior_bits: int
    steps: dict[int, tuple[int, int, int, int]]
    """Cell -> its neighbours up, down, left, right, held inside the walls."""
    patches: dict[int, tuple[int, ...]]
    """Cell -> the shapes a carving walk may open around it, as bit sets."""


_SHAPES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""(row, column) offsets of the line, corner and square patches opened at each step of the walk."""


@lru_cache(maxsize=64)
def _geometry(height: int, width: int) -> _Geometry:
    stride = width + 1
    places = [(row, column) for row in range(1, height - 1) for column in range(1, width - 1)]
    interior = tuple(row * stride + column for row, column in places)
    bits = sum(1 << cell for cell in interior)
    steps, patches = {}, {}
    for (row, column), cell in zip(places, interior, strict=True):
        neighbours = [cell + delta for delta in (-stride, stride, -1, 1)]
        steps[cell] = tuple(each if bits >> each & 1 else cell for each in neighbours)
        patches[cell] = tuple(
            sum(1 << (row + down) * stride + column + right for down, right in shape) & bits for shape in _SHAPES
        )
    return _Geometry(interior, bits, steps, patches)  # type: ignore[arg-type]


def check_room(height: int, width: int, boxes: int) -> None:
    """Check that a solvable level of this size exists.

    Raises:
        EnvConfigError: If the room is too small to pull even one box away from its target.
    """
    rows, columns = height - 2, width - 2
    if boxes < 1:
        raise EnvConfigError(f"num_boxes={boxes}: must be at least 1")
    if rows < 1 or columns < 1 or max(rows, columns) < 3 or rows * columns < boxes + 2:
        raise EnvConfigError(
            f"dim_room=({height}, {width}) with num_boxes={boxes}: too small. The border is wall; inside, one side "
            f"must be at least 3 and there must be num_boxes + 2 cells"
        )


def generate_level(
    generator: np.random.Generator, height: int, width: int, num_boxes: int, search_depth: int
) -> tuple[Level, list[Push]]:
    """Return a solvable level with at least one box off target, and the pushes that solve it.

    A random walk carves the room; boxes are put on targets; from there the game is played backwards with random pulls.
    Pushing in the opposite order is a solution, so every level is solvable by construction. The number of pulls is
    drawn from 1 up to ``search_depth`` (and no more than ``(height + width) * num_boxes``, past which pulls no longer
    make levels harder), so that levels range from one push to as many as the room allows; the last position with the
    most boxes off target is kept. The player starts anywhere it could have walked to.

    Args:
        generator: Source of all randomness.
        height: Rows, border included.
        width: Columns, border included.
        num_boxes: Number of boxes and of targets.
        search_depth: Upper bound on the number of pulls; 1 gives levels that one push solves.

    Raises:
        EnvConfigError: If no level of this size exists.
    """
    check_room(height, width, num_boxes)
    geometry = _geometry(height, width)
    draws = _Draws(generator)
    longest = min(search_depth, (height + width) * num_boxes)
    for attempt in range(40):
        # A crowded room may need more space than the walk gives: after some failures open all of it.
        floor = _carve(geometry, int(1.7 * (height + width)), draws) if attempt < 20 else geometry.interior_bits
        if floor.bit_count() < num_boxes + 2:
            continue
        cells = cells_of(floor)
        for last in range(len(cells) - 1, len(cells) - 2 - num_boxes, -1):
            other = draws.below(last + 1)
            cells[other], cells[last] = cells[last], cells[other]
        targets = sum(1 << cell for cell in cells[-num_boxes:])
        start = Level(height, width, floor, targets, targets, cells[-num_boxes - 1])
        result = _reverse_play(start, 1 + draws.below(longest), draws)
        if result is not None:
            return result
    result = _reverse_play(_crowded(height, width, num_boxes, geometry), 1, draws)
    if result is None:
        raise AssertionError(f"no level of {height}x{width} with {num_boxes} boxes: check_room let it pass")
    return result


def _carve(geometry: _Geometry, steps: int, draws: _Draws) -> int:
    """Return the floor opened by a random walk; connected, because the walk moves by one cell at a time."""
    cell = geometry.interior[draws.below(len(geometry.interior))]
    direction = draws.below(4)
    floor = 0
    neighbours, patches = geometry.steps, geometry.patches
    for number in draws.take(steps):
        # One draw serves three choices: turn with probability 0.35, the new direction, and the patch.
        if number % 100 < 35:
            direction = number // 100 & 3
        cell = neighbours[cell][direction]
        floor |= patches[cell][number // 400 % 5]
    return floor


def _crowded(height: int, width: int, num_boxes: int, geometry: _Geometry) -> Level:
    """Return a solved position in which a pull is certain: box, player, free cell in a line."""
    step = 1 if width >= 5 else width + 1
    first = geometry.interior[0]
    player, free = first + step, first + 2 * step
    others = [cell for cell in geometry.interior if cell not in (first, player, free)]
    targets = sum(1 << cell for cell in [first, *others[: num_boxes - 1]])
    return Level(height, width, geometry.interior_bits, targets, targets, player)


def _reverse_play(start: Level, pulls: int, draws: _Draws) -> tuple[Level, list[Push]] | None:
    """Play backwards from a solved position; ``None`` when no box could leave its target."""
    floor, targets, boxes, stride = start.floor, start.targets, start.boxes, start.stride
    reach = flood(1 << start.player, floor & ~boxes, stride)
    best_off, best_boxes, best_reach, best_length = 0, 0, 0, 0
    history: list[Push] = []
    for _ in range(pulls):
        # Box at b, player walks to b + delta and steps to b + 2 * delta: both must be within reach.
        up = boxes & reach << stride & reach << 2 * stride
        down = boxes & reach >> stride & reach >> 2 * stride
        left = boxes & reach << 1 & reach << 2
        right = boxes & reach >> 1 & reach >> 2
        count = up.bit_count() + down.bit_count() + left.bit_count() + right.bit_count()
        if not count:
            break
        direction, old = _choose((up, down, left, right), draws.below(count))
        delta = (-stride, stride, -1, 1)[direction]
        boxes ^= 1 << old | 1 << old + delta
        reach = flood(1 << old + 2 * delta, floor & ~boxes, stride)
        history.append((old + delta, direction ^ 1))
        off = (boxes & ~targets).bit_count()
        if off >= best_off and off:
            best_off, best_boxes, best_reach, best_length = off, boxes, reach, len(history)
    if not best_off:
        return None
    cells = cells_of(best_reach)
    player = cells[draws.below(len(cells))]
    level = Level(start.height, start.width, floor, targets, best_boxes, player)
    return level, history[:best_length][::-1]


def _choose(movable: tuple[int, int, int, int], index: int) -> tuple[int, int]:
    """Return (direction, box cell) of the pull with that index; ``movable`` holds the boxes of each direction."""
    for direction, boxes in enumerate(movable):
        count = boxes.bit_count()
        if index < count:
            return direction, cells_of(boxes)[index]
        index -= count
    raise IndexError(f"there are only {sum(boxes.bit_count() for boxes in movable)} pulls")
