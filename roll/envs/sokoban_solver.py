"""Sokoban solvers: fewest moves with one box, fewest pushes (A*) with several."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from roll.envs.sokoban_levels import Level, Push, cells_of, flood

DIRECTIONS = ("Up", "Down", "Left", "Right")


def solve(
    level: Level | Sequence[Sequence[int]] | np.ndarray,
    max_nodes: int = 200_000,
    names: Sequence[str] = DIRECTIONS,
) -> list[str] | None:
    """Return actions that solve a level.

    With one box the number of moves is the smallest possible; with several, the number of pushes is.

    Args:
        level: A :class:`Level` (``env.state()``) or a board of cell codes, ``[height][width]``.
        max_nodes: Give up after visiting so many positions.
        names: Action names for up, down, left, right.

    Returns:
        Action names in order (empty when solved already), or ``None`` when there is no solution or ``max_nodes`` was
        reached.
    """
    if not isinstance(level, Level):
        level = Level.from_codes(level)  # type: ignore[arg-type]
    if level.solved:
        return []
    if level.boxes.bit_count() == 1:
        directions = _solve_one_box(level, max_nodes)
    else:
        pushes = _solve_by_pushes(level, max_nodes)
        directions = None if pushes is None else walk_pushes(level, pushes)
    return None if directions is None else [names[direction] for direction in directions]


def fewest_pushes(level: Level, max_nodes: int = 200_000) -> int | None:
    """Return how many pushes solve a level at least; ``None`` as for :func:`solve`."""
    if level.solved:
        return 0
    pushes = _solve_by_pushes(level, max_nodes)
    return None if pushes is None else len(pushes)


def walk_pushes(level: Level, pushes: Iterable[Push]) -> list[int]:
    """Return the moves (direction indices) that carry out ``pushes``, walking the shortest way between them.

    Raises:
        ValueError: If a push cannot be carried out.
    """
    boxes, player, deltas = level.boxes, level.player, level.deltas
    moves: list[int] = []
    for cell, direction in pushes:
        delta = deltas[direction]
        free = level.floor & ~boxes
        path = _walk(player, cell - delta, free, deltas)
        if path is None or not boxes >> cell & 1 or not free >> cell + delta & 1:
            raise ValueError(
                f"cannot push the box on cell {cell} {DIRECTIONS[direction]}: it or the player cannot get there"
            )
        moves += [*path, direction]
        boxes ^= 1 << cell | 1 << cell + delta
        player = cell
    return moves


def _walk(start: int, goal: int, free: int, deltas: tuple[int, ...]) -> list[int] | None:
    """Return the shortest walk over ``free`` cells, breadth first."""
    came: dict[int, int] = {start: -1}
    frontier = [start]
    while frontier and goal not in came:
        following = []
        for cell in frontier:
            for direction, delta in enumerate(deltas):
                there = cell + delta
                if there not in came and free >> there & 1:
                    came[there] = direction
                    following.append(there)
        frontier = following
    if goal not in came:
        return None
    path = []
    while goal != start:
        path.append(came[goal])
        goal -= deltas[came[goal]]
    return path[::-1]


def _push_distances(level: Level) -> dict[int, int]:
    """Return for each cell the fewest pushes that bring a box from there to some target, other boxes aside.

    Cells that are missing are dead: a box there can never reach a target.
    """
    distances = dict.fromkeys(cells_of(level.targets), 0)
    frontier = list(distances)
    while frontier:
        following = []
        for cell in frontier:
            for delta in level.deltas:
                # Pulled back by one: the box lands on `cell + delta`, the player needs the cell behind it.
                there = cell + delta
                if there not in distances and level.floor >> there & 1 and level.floor >> there + delta & 1:
                    distances[there] = distances[cell] + 1
                    following.append(there)
        frontier = following
    return distances


def _solve_one_box(level: Level, max_nodes: int) -> list[int] | None:
    """Breadth-first search over (box, player); a state is ``box * size + player``."""
    size = level.height * level.stride
    deltas = tuple(enumerate(level.deltas))
    floor = bytearray(level.floor >> cell & 1 for cell in range(size))
    targets = level.targets
    alive = bytearray(size)
    for cell in _push_distances(level):
        alive[cell] = 1
    start = (level.boxes.bit_length() - 1) * size + level.player
    came: dict[int, tuple[int, int]] = {start: (-1, -1)}
    frontier = [start]
    while frontier and len(came) <= max_nodes:
        following = []
        for state in frontier:
            box, player = divmod(state, size)
            for direction, delta in deltas:
                there = player + delta
                if there == box:
                    beyond = box + delta
                    if not alive[beyond]:
                        continue
                    after = beyond * size + there
                    if targets >> beyond & 1:
                        return [*_trace(came, state), direction]
                elif floor[there]:
                    after = state + delta
                else:
                    continue
                if after not in came:
                    came[after] = (state, direction)
                    following.append(after)
        frontier = following
    return None


def _trace(came: dict[int, tuple[int, int]], state: int) -> list[int]:
    path: list[int] = []
    while True:
        state, direction = came[state]
        if direction < 0:
            return path[::-1]
        path.append(direction)


def _solve_by_pushes(level: Level, max_nodes: int) -> list[Push] | None:
    """A* over (boxes, region the player can reach); the bound is the sum of each box's push distance."""
    stride, floor = level.stride, level.floor
    distances = _push_distances(level)
    alive = sum(1 << cell for cell in distances)
    if level.boxes & ~alive:
        return None
    region = flood(1 << level.player, floor & ~level.boxes, stride)
    bound = sum(distances[cell] for cell in cells_of(level.boxes))
    came: dict[tuple[int, int], tuple[tuple[int, int], Push] | None] = {(level.boxes, region): None}
    cost = {(level.boxes, region): 0}
    serial = 0
    # Ties go to the position closest to done, then to the newest: deep first, as many positions share a bound.
    queue = [(bound, bound, 0, level.boxes, region)]
    while queue and len(cost) <= max_nodes:
        total, bound, _, boxes, region = heapq.heappop(queue)
        if not bound:
            return _trace_pushes(came, (boxes, region))
        so_far = total - bound
        if cost[boxes, region] < so_far:
            continue
        for push, new_boxes, new_region in _pushes(boxes, region, floor, alive, stride):
            key = (new_boxes, new_region)
            if cost.get(key, so_far + 2) <= so_far + 1:
                continue
            cost[key] = so_far + 1
            came[key] = ((boxes, region), push)
            cell, direction = push
            new_bound = bound - distances[cell] + distances[cell + level.deltas[direction]]
            serial -= 1
            heapq.heappush(queue, (so_far + 1 + new_bound, new_bound, serial, new_boxes, new_region))
    return None


def _pushes(boxes: int, region: int, floor: int, alive: int, stride: int) -> Iterable[tuple[Push, int, int]]:
    """Yield every push from a position with the position after it."""
    room = alive & ~boxes
    movable = (
        boxes & region >> stride & room << stride,
        boxes & region << stride & room >> stride,
        boxes & region >> 1 & room << 1,
        boxes & region << 1 & room >> 1,
    )
    for direction, delta in enumerate((-stride, stride, -1, 1)):
        for cell in cells_of(movable[direction]):
            after = boxes ^ (1 << cell | 1 << cell + delta)
            yield (cell, direction), after, flood(1 << cell, floor & ~after, stride)


def _trace_pushes(came: dict[tuple[int, int], tuple[tuple[int, int], Push] | None], key: tuple[int, int]) -> list[Push]:
    path = []
    step = came[key]
    while step is not None:
        key, push = step
        path.append(push)
        step = came[key]
    return path[::-1]
