"""Additive attention masks, cut out of one line of numbers instead of computed from positions."""

from __future__ import annotations

import torch


class CausalMasks:
    """Masks of queries at any positions.

    Row ``p`` of a causal mask is zeros up to key ``p`` and ``-inf`` behind it. All rows are windows of the same line,
    ``0 … 0 -inf … -inf``, each shifted by one, so a mask is one gather from overlapping views of that line.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[int | None, torch.dtype, torch.device], torch.Tensor] = {}

    def mask(self, positions: torch.Tensor, keys: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask of some queries.

        Args:
            positions: ``[rows, queries]`` position of each query, below ``keys``.
            keys: Keys of each row.
            window: How many positions back a query sees, itself included; ``None`` for all.
            dtype: Of the mask.

        Returns:
            ``[rows, 1, queries, keys]``, 0 where a query sees a key, else ``-inf``.
        """
        line = self._line(keys, window, dtype, positions.device)
        length = line.shape[0] // 2
        shifted = line.as_strided((length, keys), (1, 1))
        rows = shifted.index_select(0, (length - 1 - positions).flatten())
        return rows.view(positions.shape[0], 1, positions.shape[1], keys)

    def _line(self, keys: int, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the line for at least ``keys`` keys: half of it is before the border, half behind."""
        line = self._lines.get((window, dtype, device))
        if line is None or line.shape[0] < 2 * keys:
            length = max(256, 1 << (keys - 1).bit_length())
            line = torch.full((2 * length,), float("-inf"), dtype=dtype, device=device)
            line[0 if window is None else max(length - window, 0) : length] = 0.0
            self._lines[window, dtype, device] = line
        return line
