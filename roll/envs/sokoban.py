"""Sokoban as a text environment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.envs.lookups import legend, merged_lookup, merged_vocab, room_size
from roll.envs.sokoban_files import largest_room, levels_of
from roll.envs.sokoban_levels import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    Level,
    cells_of,
    check_room,
    generate_level,
)
from roll.envs.sokoban_solver import fewest_pushes, solve
from roll.envs.spaces import AnyText, board_space

__all__ = ["GRID_LOOKUP", "ACTION_LOOKUP", "GRID_MEANINGS", "Level", "SokobanEnv", "solve"]

GRID_LOOKUP = {0: "#", 1: "_", 2: "O", 3: "√", 4: "X", 5: "P", 6: "S"}
GRID_MEANINGS = {
    0: "wall",
    1: "floor",
    2: "target",
    3: "box on target",
    4: "box",
    5: "player",
    6: "player on target",
}
ACTION_LOOKUP = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}

_TILES = ("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target")

_ATTEMPTS = 100
"""Levels that are made to find one with as many pushes as wanted."""


class SokobanEnv(TextEnv):
    """Push every box onto a target.

    Args:
        dim_room: Rows and columns, border included.
        num_boxes: Number of boxes, each with its target.
        max_steps: The episode is truncated after so many steps.
        search_depth: Upper bound on the pulls of the reverse play that makes a level; 1 gives one-push levels.
        pushes: Least and most pushes of the solution that a level is made with: levels of growing bounds are a
            curriculum. Where a room gives no such level in 100 attempts, the nearest of them is played. ``None``: any.
        levels: File of levels as Boxoban's are published; see :func:`roll.envs.sokoban_files.levels_of`. The seed
            chooses one of them, and rooms and boxes are theirs instead of ``dim_room`` and ``num_boxes``.
        grid_lookup: Symbol of each cell code: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on
            target. May be partial.
        grid_vocab: Meaning of each symbol, for the legend. May be partial.
        action_lookup: Names of the actions: 1 up, 2 down, 3 left, 4 right. May be partial.
        format_penalty: Added to the reward of a response without a valid action.
        action_pattern: Finds the action in a response; empty: the response is the action.
        step_penalty: Added to the reward of every step, also of an invalid one.
        box_on_target: Added when a box is pushed onto a target.
        box_off_target: Added when a box is pushed off a target.
        finish: Added when the last box reaches its target.
        observation_format: ``"grid"`` (rows of symbols) or ``"coords"`` (a line per kind of cell).
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` or ``None``.

    Raises:
        EnvConfigError: If an option cannot work.
    """

    is_quick = True

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        max_steps: int | None = 100,
        search_depth: int = 100,
        grid_lookup: Mapping[Any, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        action_lookup: Mapping[Any, str] | None = None,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        step_penalty: float = -0.1,
        box_on_target: float = 1.0,
        box_off_target: float = -1.0,
        finish: float = 10.0,
        observation_format: str = "grid",
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
        pushes: Sequence[int] | None = None,
        levels: str | None = None,
    ) -> None:
        if levels is not None and pushes is not None:
            raise EnvConfigError(f"levels and pushes={list(pushes)}: pushes is of levels that are made; leave one out")
        self.pushes = None if pushes is None else _bounds(pushes)
        self._levels = () if levels is None else levels_of(levels)
        self.dim_room = largest_room(self._levels) or room_size("dim_room", dim_room, least=3)
        self.num_boxes = int(num_boxes)
        if not self._levels:
            check_room(*self.dim_room, self.num_boxes)
        self.search_depth = int(search_depth)
        if self.search_depth < 1:
            raise EnvConfigError(f"search_depth={search_depth}: must be at least 1")
        if observation_format not in ("grid", "coords"):
            raise EnvConfigError(f"observation_format={observation_format!r}: use 'grid' or 'coords'")
        self.observation_format = observation_format
        self.grid_lookup = merged_lookup("grid_lookup", GRID_LOOKUP, grid_lookup)
        self.grid_vocab = merged_vocab(self.grid_lookup, GRID_MEANINGS, grid_vocab)
        names = tuple(merged_lookup("action_lookup", ACTION_LOOKUP, action_lookup).values())
        self.step_penalty, self.finish = float(step_penalty), float(finish)
        self.box_on_target, self.box_off_target = float(box_on_target), float(box_off_target)
        super().__init__(
            actions=names,
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
            observation_space=self._space(),
            metrics_agg={"boxes_on_target": "last"},
        )
        self._symbols = tuple(self.grid_lookup[code] for code in range(7))
        self._codes = bytearray()
        self._chars: list[str] = []
        self._deltas: dict[str, int] = {}
        self._shape = self.dim_room
        self._player = 0
        self._off_target = 0
        self._total_boxes = self.num_boxes

    # State ------------------------------------------------------------------------------------------------------

    def state(self) -> Level:
        """Return the position as a record that ``solve`` takes.

        Raises:
            EnvConfigError: Before the first reset.
        """
        if not self._codes:
            raise EnvConfigError("SokobanEnv.state: no level yet; call reset() first")
        return Level.from_codes(self.board().tolist())

    def board(self) -> np.ndarray:
        """Return the cell codes, ``uint8 [rows, columns]``."""
        rows, columns = self._shape
        return np.frombuffer(bytes(self._codes), dtype=np.uint8).reshape(rows, columns + 1)[:, :columns]

    def load(self, level: Level | str) -> None:
        """Set the position, from a record or from text in this environment's symbols.

        Raises:
            EnvConfigError: If the text is not a board.
        """
        if isinstance(level, str):
            level = self._parse_board(level)
        symbols, targets, boxes = self._symbols, level.targets, level.boxes
        codes = bytearray(level.height * level.stride)
        chars = ([symbols[WALL]] * level.width + ["\n"]) * level.height
        chars[-1] = ""
        for cell in cells_of(level.floor):
            on_target = targets >> cell & 1
            if boxes >> cell & 1:
                code = BOX_ON_TARGET if on_target else BOX
            else:
                code = TARGET if on_target else FLOOR
            codes[cell] = code
            chars[cell] = symbols[code]
        self._shape = (level.height, level.width)
        self._codes, self._chars, self._player = codes, chars, level.player
        self._deltas = dict(zip(self.actions or (), level.deltas, strict=True))
        self._off_target = (boxes & ~targets).bit_count()
        self._total_boxes = boxes.bit_count()
        self._put(level.player, PLAYER if codes[level.player] == FLOOR else PLAYER_ON_TARGET)

    # TextEnv ----------------------------------------------------------------------------------------------------

    def _start(self, options: dict[str, Any] | None) -> str:
        if not options:
            return self.start()
        if set(options) != {"level"}:
            raise EnvConfigError(f"SokobanEnv.reset: unknown options {sorted(options)}; the only one is 'level'")
        self.load(options["level"])
        return self._observe()

    def start(self) -> str:
        """Generate a level, or take one of the file."""
        self.load(self._level())
        return self._observe()

    def _level(self) -> Level:
        if self._levels:
            return self._levels[int(self.np_random.integers(len(self._levels)))]
        best: Level | None = None
        least, most = self.pushes or (0, self.search_depth)
        off_best = 0
        for _ in range(_ATTEMPTS):
            level, made_of = generate_level(self.np_random, *self.dim_room, self.num_boxes, self.search_depth)
            off = max(least - len(made_of), len(made_of) - most, 0) if self.pushes else 0
            if best is None or off < off_best:
                best, off_best = level, off
            if not off:
                break
        assert best is not None
        return best

    def act(self, action: str) -> Outcome:
        """Move one cell, pushing the box that stands there."""
        codes, delta = self._codes, self._deltas[action]
        there = self._player + delta
        code = codes[there]
        parts = {"step": self.step_penalty}
        if code == BOX or code == BOX_ON_TARGET:
            beyond = codes[there + delta]
            if beyond != FLOOR and beyond != TARGET:
                return Outcome(self._observation, parts, effective=False)
            self._push(there, there + delta, parts)
        elif code != FLOOR and code != TARGET:
            return Outcome(self._observation, parts, effective=False)
        self._put(self._player, FLOOR if codes[self._player] == PLAYER else TARGET)
        self._put(there, PLAYER if codes[there] == FLOOR else PLAYER_ON_TARGET)
        self._player = there
        done = not self._off_target
        if done:
            parts["finish"] = self.finish
        return Outcome(self._observe(), parts, done, done)

    def idle(self) -> dict[str, float]:
        """Return the step penalty: saying nothing valid must not be cheaper than moving."""
        return {"step": self.step_penalty}

    def state_metrics(self) -> dict[str, float]:
        """Return the number of boxes on targets."""
        return {"boxes_on_target": float(self._total_boxes - self._off_target)}

    def solution(self) -> list[str] | None:
        """Return the fewest moves (one box) or moves with the fewest pushes; ``None`` if the level is lost."""
        return solve(self.state(), names=self.actions or ())

    def difficulty(self, seed: int) -> float:
        """Return the fewest pushes that solve the level of a seed; infinite where the solver gives up."""
        self.reset(seed=seed)
        pushes = fewest_pushes(self.state())
        return math.inf if pushes is None else float(pushes)

    def describe(self) -> str:
        """Return the rules and the legend."""
        return (
            "You are solving a Sokoban puzzle: push every box onto a target. You move one cell at a time; walking into "
            "a box pushes it if the cell behind it is free. Boxes cannot be pulled, so do not push them into corners.\n"
            f"Symbols: {legend(self.grid_vocab)}."
        )

    def image(self) -> np.ndarray:
        """Return the board in tiles, ``uint8 [rows * 32, columns * 32, 3]``."""
        from roll.envs.tiles import board_image

        return board_image([[_TILES[code] for code in row] for row in self.board().tolist()])

    # Inside -----------------------------------------------------------------------------------------------------

    def _put(self, cell: int, code: int) -> None:
        self._codes[cell] = code
        self._chars[cell] = self._symbols[code]

    def _push(self, cell: int, beyond: int, parts: dict[str, float]) -> None:
        codes = self._codes
        was_on, is_on = codes[cell] == BOX_ON_TARGET, codes[beyond] == TARGET
        self._put(cell, TARGET if was_on else FLOOR)
        self._put(beyond, BOX_ON_TARGET if is_on else BOX)
        if is_on and not was_on:
            self._off_target -= 1
            parts["box"] = self.box_on_target
        elif was_on and not is_on:
            self._off_target += 1
            parts["box"] = self.box_off_target

    def _observe(self) -> str:
        if self.observation_format == "grid":
            return "".join(self._chars)
        rows = self.board().tolist()
        lines = []
        for code in (PLAYER, PLAYER_ON_TARGET, BOX, BOX_ON_TARGET, TARGET, FLOOR):
            places = [
                f"({row}, {column})"
                for row, line in enumerate(rows)
                for column, each in enumerate(line)
                if each == code
            ]
            if places:
                lines.append(f"{self.grid_vocab[self._symbols[code]]}: {' '.join(places)}")
        return "\n".join(lines)

    def _space(self) -> Any:
        if self.observation_format == "grid":
            return board_space(set(self.grid_lookup.values()), *self.dim_room)
        return AnyText(max_length=1 << 20)

    def _parse_board(self, text: str) -> Level:
        codes = {symbol: code for code, symbol in self.grid_lookup.items()}
        rows: list[list[int]] = []
        for line in text.strip("\n").split("\n"):
            row = []
            while line:
                symbol = next((each for each in codes if line.startswith(each)), None)
                if symbol is None:
                    raise EnvConfigError(f"level: {line[0]!r} in row {len(rows)} is not a symbol of {self.grid_lookup}")
                row.append(codes[symbol])
                line = line[len(symbol) :]
            rows.append(row)
        return Level.from_codes(rows)


def _bounds(pushes: Sequence[int]) -> tuple[int, int]:
    least, most = (int(each) for each in pushes) if len(pushes) == 2 else (0, 0)
    if not 1 <= least <= most:
        raise EnvConfigError(f"pushes={list(pushes)}: give the least and the most, such as [4, 12]")
    return least, most
