"""Pictures of boards: small tiles drawn with numpy, so that rendering needs no image files and no display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

TILE = 32
"""Side of a tile in pixels."""

_FLOOR = (236, 231, 218)
_WALL, _MORTAR = (110, 98, 92), (84, 74, 70)
_TARGET = (200, 62, 62)
_BOX, _BOX_EDGE = (198, 146, 76), (122, 82, 36)
_DONE, _DONE_EDGE = (118, 178, 92), (58, 110, 48)
_PLAYER, _FACE = (52, 104, 190), (250, 250, 250)
_ICE, _CRACK = (214, 234, 244), (186, 214, 230)
_HOLE, _HOLE_RIM = (34, 52, 84), (120, 160, 190)
_GOAL = (232, 180, 36)


def _grid() -> tuple[np.ndarray, np.ndarray]:
    axis = np.arange(TILE) + 0.5 - TILE / 2
    return axis[:, None], axis[None, :]


def _filled(colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((TILE, TILE, 3), colour, dtype=np.uint8)


def _disc(tile: np.ndarray, colour: tuple[int, int, int], radius: float, row: float = 0.0, column: float = 0.0) -> None:
    rows, columns = _grid()
    tile[(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = colour


def _square(tile: np.ndarray, colour: tuple[int, int, int], half: int) -> None:
    middle = TILE // 2
    tile[middle - half : middle + half, middle - half : middle + half] = colour


def _wall() -> np.ndarray:
    tile = _filled(_WALL)
    for line in range(0, TILE, 8):
        tile[line] = _MORTAR
        offset = 0 if (line // 8) % 2 else 8
        tile[line : line + 8, offset::16] = _MORTAR
    return tile


def _target() -> np.ndarray:
    tile = _filled(_FLOOR)
    _disc(tile, _TARGET, 9)
    _disc(tile, _FLOOR, 6)
    _disc(tile, _TARGET, 3)
    return tile


def _box(face: tuple[int, int, int], edge: tuple[int, int, int]) -> np.ndarray:
    tile = _filled(_FLOOR)
    _square(tile, edge, 13)
    _square(tile, face, 11)
    rows, columns = _grid()
    inside = (np.abs(rows) < 11) & (np.abs(columns) < 11)
    tile[inside & ((np.abs(rows - columns) < 2) | (np.abs(rows + columns) < 2))] = edge
    return tile


def _with_player(ground: np.ndarray) -> np.ndarray:
    tile = ground.copy()
    _disc(tile, _PLAYER, 11)
    _disc(tile, _FACE, 2.5, -3, -4)
    _disc(tile, _FACE, 2.5, -3, 4)
    return tile


def _player_on_target() -> np.ndarray:
    tile = _filled(_FLOOR)
    _disc(tile, _TARGET, 15)
    _disc(tile, _FLOOR, 12.5)
    return _with_player(tile)


def _ice() -> np.ndarray:
    tile = _filled(_ICE)
    tile[0], tile[:, 0] = _CRACK, _CRACK
    return tile


def _hole() -> np.ndarray:
    tile = _ice()
    _disc(tile, _HOLE_RIM, 13)
    _disc(tile, _HOLE, 11)
    return tile


def _goal() -> np.ndarray:
    tile = _ice()
    tile[6:28, 10:12] = _MORTAR
    tile[6:16, 12:24] = _GOAL
    return tile


def _player_in_hole() -> np.ndarray:
    tile = _hole()
    _disc(tile, _PLAYER, 6)
    return tile


_PAINTERS: dict[str, Callable[[], np.ndarray]] = {
    "wall": _wall,
    "floor": lambda: _filled(_FLOOR),
    "target": _target,
    "box": lambda: _box(_BOX, _BOX_EDGE),
    "box_on_target": lambda: _box(_DONE, _DONE_EDGE),
    "player": lambda: _with_player(_filled(_FLOOR)),
    "player_on_target": _player_on_target,
    "ice": _ice,
    "hole": _hole,
    "goal": _goal,
    "player_on_ice": lambda: _with_player(_ice()),
    "player_in_hole": _player_in_hole,
    "player_on_goal": lambda: _with_player(_goal()),
}


@cache
def tile(name: str) -> np.ndarray:
    """Return the tile of that name, ``uint8 [TILE, TILE, 3]``, read-only."""
    painted = _PAINTERS[name]()
    painted.flags.writeable = False
    return painted


def board_image(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the picture of a board given as tile names, ``uint8 [rows * TILE, columns * TILE, 3]``."""
    return np.concatenate([np.concatenate([tile(name) for name in row], axis=1) for row in rows], axis=0)


def text_image(text: str) -> np.ndarray:
    """Return ``text`` typed in black on white, ``uint8 [height, width, 3]``."""
    from PIL import Image, ImageDraw

    probe = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    # The built-in bitmap font knows Latin-1 only; other characters become question marks instead of an error.
    shown = text.encode("latin-1", "replace").decode("latin-1") or " "
    _, _, right, bottom = probe.multiline_textbbox((8, 8), shown)
    image = Image.new("RGB", (int(right) + 8, int(bottom) + 8), "white")
    ImageDraw.Draw(image).multiline_text((8, 8), shown, fill="black")
    return np.asarray(image, dtype=np.uint8).copy()
