"""Parts of a batch for data-parallel ranks: equal work for each, and the rows back in order afterwards."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from roll.distributed.rows_on_the_way import RowsOnTheWay


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one rank.

    Attributes:
        whole: The whole batch.
        rows: Their numbers in it, ``[rows]`` int64, ascending.
    """

    whole: TensorDict
    rows: torch.Tensor

    @property
    def batch(self) -> TensorDict:
        """The rows, in the order in which the whole batch has them, copied; batch size ``[rows]``."""
        return self.whole[self.rows]

    @property
    def sent(self) -> TensorDict | RowsOnTheWay:
        """The same for a call to a worker, not copied here."""
        return self.whole if len(self.rows) == len(self.whole) else RowsOnTheWay(self.whole, self.rows)


def shard(batch: TensorDict, lengths: torch.Tensor | Sequence[int], ranks: int) -> list[Shard]:
    """Split ``batch`` so that every rank has about as many tokens.

    The longest rows are dealt first, each to the rank with the fewest tokens so far (among equals, the fewest rows),
    which leaves the busiest rank at most a third above the best split (Graham, 1969). The same lengths give the same
    split.

    Args:
        batch: Batch size ``[batch]``. Rows with the same number in the column ``pair``, if it is there, stay together.
        lengths: Tokens of each row, ``[batch]``, at least 0.
        ranks: Number of parts.

    Returns:
        One shard per rank. With fewer rows than ranks, some are empty.

    Raises:
        ValueError: If there is not one length per row, one is negative, or ``ranks`` is less than 1.
    """
    tokens = torch.as_tensor(lengths).tolist()
    if len(tokens) != len(batch):
        raise ValueError(f"{len(tokens)} lengths for {len(batch)} rows; give one for each.")
    units = _units(batch)
    dealt = balanced_rows([sum(tokens[row] for row in unit) for unit in units], ranks)
    parts = (torch.tensor(sorted(row for one in part for row in units[one]), dtype=torch.int64) for part in dealt)
    return [Shard(batch, rows) for rows in parts]


def _units(batch: TensorDict) -> list[list[int]]:
    """Return the rows that stay together: single ones, or the pairs of a batch of pairs."""
    pairs = batch.get("pair", None)
    found: dict[int, list[int]] = {}
    for row, pair in enumerate(range(len(batch)) if pairs is None else pairs.tolist()):
        found.setdefault(pair, []).append(row)
    return list(found.values())


def balanced_rows(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Return which rows each rank gets; see :func:`shard`.

    Raises:
        ValueError: A length is negative, or ``ranks`` is less than 1.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: must be at least 1.")
    if any(length < 0 for length in lengths):
        raise ValueError(f"A row has {min(lengths)} tokens; lengths cannot be negative.")
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, 0, rank) for rank in range(ranks)]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        load, count, rank = loads[0]
        parts[rank].append(row)
        heapq.heapreplace(loads, (load + lengths[row], count + 1, rank))
    return [sorted(part) for part in parts]


def unshard(shards: Sequence[Shard], outputs: Sequence[torch.Tensor], fill: float = 0.0) -> torch.Tensor:
    """Put what the ranks made of their shards back into the order of the whole batch.

    Args:
        shards: What :func:`shard` returned.
        outputs: One tensor per shard, ``[rows, ...]``. Further dimensions may differ between ranks.
        fill: Fills rows behind their end up to the widest.

    Returns:
        ``[batch, ...]``.

    Raises:
        ValueError: If outputs and shards do not match in number, or in their rows.
    """
    if len(outputs) != len(shards):
        raise ValueError(f"{len(outputs)} outputs for {len(shards)} shards; give one for each.")
    for rank, (part, output) in enumerate(zip(shards, outputs, strict=True)):
        if len(output) != len(part.rows):
            raise ValueError(f"Rank {rank} returned {len(output)} rows for {len(part.rows)}.")
    if len(shards) == 1:
        return outputs[0]
    # A rank without rows may not know how wide its result would have been, nor its type.
    filled = [output for output in outputs if len(output)] or [outputs[0]]
    widths = [max(sizes) for sizes in zip(*(output.shape[1:] for output in filled), strict=True)]
    size = (sum(len(part.rows) for part in shards), *widths)
    even = all(list(output.shape[1:]) == widths for output in filled)
    # Written once where nothing has to be filled: of a large batch each more would be felt.
    whole = filled[0].new_empty(size) if even else filled[0].new_full(size, fill)
    for part, output in zip(shards, outputs, strict=True):
        if len(output):
            cells: tuple[torch.Tensor | slice, ...] = (part.rows, *(slice(int(size)) for size in output.shape[1:]))
            whole[cells] = output
    return whole
