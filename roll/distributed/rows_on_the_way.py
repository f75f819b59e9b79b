"""Rows of a batch for one of many ranks: neither the sender copies them nor, as a rule, the rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pickle import PickleBuffer
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from roll.distributed.read_only import tensor_of
from roll.distributed.worker_group import OnTheWay

_WORTH_IT: Final = 2048
"""Bytes of a row from which it travels by itself; many short ones are copied sooner than described."""


@dataclass(frozen=True)
class RowsOnTheWay(OnTheWay):
    """Rows of a batch, which arrive as a batch of their own.

    Attributes:
        batch: The batch, unchanged until they were sent; batch size ``[batch]``.
        rows: Their numbers, ``[rows]`` int64.
    """

    batch: TensorDict
    rows: Tensor

    def arrived(self) -> TensorDict:
        """Return the rows as a batch."""
        return self.batch[self.rows]

    def __reduce__(self) -> Any:
        columns = {name: self._column(column) for name, column in self.batch.items()}
        return _together, (columns, len(self.rows))

    def _column(self, column: Any) -> Any:
        plain = isinstance(column, Tensor) and column.device.type == "cpu" and column.is_contiguous()
        if not plain or column[:1].nbytes < _WORTH_IT:
            return column[self.rows]
        bytes_of = column.detach().flatten(1).view(torch.uint8).numpy()
        pieces = [PickleBuffer(bytes_of[row]) for row in self.rows.tolist()]
        return _Pieces(pieces, str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A column row by row.

    Attributes:
        pieces: The bytes of each row.
        dtype: Its type.
        shape: The shape of a row.
    """

    pieces: Sequence[Any]
    dtype: str
    shape: tuple[int, ...]

    def together(self) -> Tensor:
        """Return the column, which nobody may write into: where they lie at even distances, the pieces themselves."""
        rows = [np.frombuffer(piece, np.uint8) for piece in self.pieces]
        dtype: torch.dtype = getattr(torch, self.dtype)
        lying = _Lying.of(rows, dtype.itemsize)
        if lying is not None:
            return tensor_of(np.asarray(lying)).view(dtype).reshape(len(rows), *self.shape)
        column = torch.empty(len(rows), *self.shape, dtype=dtype)
        for row, piece in zip(column.flatten(1).view(torch.uint8).numpy(), rows, strict=True):
            row[:] = piece
        return column


@dataclass(frozen=True, slots=True)
class _Lying:
    """Rows of bytes in one piece of memory, as NumPy takes them; keeps that memory.

    Ray's object store lays the buffers of a value one behind the other, each from a multiple of 64 bytes on.

    Attributes:
        rows: The bytes of each row.
        distance: Bytes from the beginning of one to that of the next.
    """

    rows: Sequence[NDArray[np.uint8]]
    distance: int

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.uint8]], itemsize: int) -> _Lying | None:
        """Return the rows, or ``None`` where they cannot be one tensor of elements of ``itemsize`` bytes."""
        if not rows:
            return None
        starts = [_start(row) for row in rows]
        distances = {after - before for before, after in pairwise(starts)} or {rows[0].nbytes}
        distance = distances.pop()
        fits = distance >= rows[0].nbytes and distance % itemsize == 0 and starts[0] % itemsize == 0
        return cls(rows, distance) if fits and not distances else None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": "|u1",
            "data": (_start(self.rows[0]), True),
            "shape": (len(self.rows), self.rows[0].nbytes),
            "strides": (self.distance, 1),
        }


def _start(row: NDArray[np.uint8]) -> int:
    """Return the address of its first byte."""
    return int(row.__array_interface__["data"][0])


def _together(columns: Mapping[str, Any], count: int) -> TensorDict:
    whole = {name: each.together() if isinstance(each, _Pieces) else each for name, each in columns.items()}
    return TensorDict(whole, batch_size=[count])
