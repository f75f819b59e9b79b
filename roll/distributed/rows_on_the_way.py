"""Rows of a batch for one of many ranks: the sender copies none of them, the rank puts them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

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
        """Return the column."""
        dtype = getattr(torch, self.dtype)
        column = torch.empty(len(self.pieces), *self.shape, dtype=dtype)
        for row, piece in zip(column.flatten(1).view(torch.uint8).numpy(), self.pieces, strict=True):
            row[:] = np.frombuffer(piece, np.uint8)
        return column


def _together(columns: Mapping[str, Any], count: int) -> TensorDict:
    whole = {name: each.together() if isinstance(each, _Pieces) else each for name, each in columns.items()}
    return TensorDict(whole, batch_size=[count])
