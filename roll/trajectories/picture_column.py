"""Pictures in a batch: a column of bytes, so that they go wherever its other columns go, and are decoded where read."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.generation.pictures import Picture

PICTURES = "pictures"
"""Column of a batch, ``[batch, 1, bytes]`` uint8, where a row has pictures: those of each row, filled up with zeros.

The dimension in the middle tells it from columns with an entry for each token.
"""

_HEADER = struct.Struct("<iiii")


def picture_column(rows: Sequence[Sequence[Picture]]) -> Tensor:
    """Return the pictures of each row of a batch as :data:`PICTURES`, ``[batch, 1, bytes]`` uint8."""
    written = [b"".join(map(_written, row)) for row in rows]
    column = np.zeros((len(rows), 1, max(map(len, written), default=0)), dtype=np.uint8)
    for row, data in enumerate(written):
        column[row, 0, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    return torch.from_numpy(column)


def pictures_of(batch: TensorDict) -> list[list[Picture]] | None:
    """Return the pictures of each row of a batch; ``None`` where the batch has no such column."""
    column: Tensor | None = batch.get(PICTURES, None)
    return None if column is None else [_read(bytes(row)) for row in column[:, 0].cpu().numpy()]


def _written(picture: Picture) -> bytes:
    return _HEADER.pack(picture.start, picture.rows, picture.columns, len(picture.data)) + picture.data


def _read(data: bytes) -> list[Picture]:
    pictures, place = [], 0
    while place + _HEADER.size <= len(data):
        start, rows, columns, size = _HEADER.unpack_from(data, place)
        if not rows:  # what is left fills the row up
            break
        place += _HEADER.size
        pictures.append(Picture(start, rows, columns, data[place : place + size]))
        place += size
    return pictures
