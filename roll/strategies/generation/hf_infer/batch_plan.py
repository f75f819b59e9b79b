"""Which tokens of which slots run in one forward pass, and how their attention is grouped.

The new tokens of all rows are laid end to end without padding: the linear layers of the model see ``[1, tokens]``.
Only attention needs rows apart, so the plan cuts the rows into groups whose queries and keys are padded to a common
size, and lays the rows of a group side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows whose attention is one call.

    Attributes:
        first: Index of the group's first token in the flat batch.
        stop: Index after its last token.
        slots: Cache rows to read: a slice (no copy) or ``[rows]`` indices (gathered).
        rows: Number of cache rows read.
        keys: Keys read of each row.
        query_index: ``[rows * queries]`` flat token of each padded query, or ``None`` where the group's tokens already
            are exactly those, in order.
        output_index: ``[stop - first]`` padded query of each token, or ``None`` likewise.
        positions: ``[rows, queries]`` position of each padded query in its sequence.
    """

    first: int
    stop: int
    slots: slice | torch.Tensor
    rows: int
    keys: int
    query_index: torch.Tensor | None
    output_index: torch.Tensor | None
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One forward pass.

    Attributes:
        order: ``[rows]`` the order in which the rows given to :func:`plan_batch` lie in the flat batch.
        slot_index: ``[tokens]`` slot of each token.
        positions: ``[tokens]`` position of each token in its sequence.
        wanted_index: ``[wanted]`` flat indices of the tokens whose logits are wanted: the last ones of each row, in the
            order of the rows as they were given.
        groups: The attention calls.
    """

    order: IntArray
    slot_index: torch.Tensor
    positions: torch.Tensor
    wanted_index: torch.Tensor
    groups: list[AttentionGroup]


def plan_batch(
    slots: IntArray,
    starts: IntArray,
    lengths: IntArray,
    device: torch.device,
    *,
    group_rows: int,
    group_scores: int,
    wanted: IntArray | None = None,
) -> BatchPlan:
    """Plan a forward pass over rows of new tokens.

    Args:
        slots: ``[rows]`` slot of each row, all different.
        starts: ``[rows]`` tokens already cached in the slot.
        lengths: ``[rows]`` new tokens, at least 1.
        device: Where index tensors go.
        group_rows: Most cache rows in one attention call.
        group_scores: Most padded query-key pairs in one attention call (bounds the mask's memory).
        wanted: ``[rows]`` of how many last tokens logits are wanted, at most ``lengths``; ``None`` for one each.
    """
    # Single tokens first, by slot, so that runs of slots can be read in place; then the others by similar length.
    size_class = np.where(lengths == 1, 0, np.frexp(lengths.astype(np.float64))[1])
    order = np.lexsort((slots, size_class))
    slots, starts, lengths = slots[order], starts[order], lengths[order]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.repeat(starts, lengths) + _counted(lengths)
    groups = [
        _group(slots[a:b], starts[a:b], lengths[a:b], int(offsets[a]), device)
        for a, b in _cut(slots, starts, lengths, group_rows, group_scores)
    ]
    last = np.empty_like(order)
    last[order] = offsets[1:] - 1
    ends = last if wanted is None else np.repeat(last - wanted + 1, wanted) + _counted(wanted)
    return BatchPlan(
        order=order,
        slot_index=torch.from_numpy(np.repeat(slots, lengths)).to(device),
        positions=torch.from_numpy(positions).to(device),
        wanted_index=torch.from_numpy(ends).to(device),
        groups=groups,
    )


def _counted(counts: IntArray) -> IntArray:
    """Return 0, 1, … below each count, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _cut(
    slots: IntArray, starts: IntArray, lengths: IntArray, group_rows: int, group_scores: int
) -> list[tuple[int, int]]:
    """Return the half-open row ranges of the groups: bounded in rows, slots spanned, scores and padding."""
    ranges: list[tuple[int, int]] = []
    first, queries, keys, tokens = 0, 0, 0, 0
    for row, (slot, start, length) in enumerate(zip(slots.tolist(), starts.tolist(), lengths.tolist(), strict=True)):
        count = row - first + 1
        new_queries, new_keys = max(queries, length), max(keys, start + length)
        single = new_queries == 1
        spread = slot - int(slots[first]) + 1 if single else count
        too_big = spread > group_rows or count * new_queries * new_keys > group_scores
        padded = not single and count * new_queries > 1.5 * (tokens + length)
        starts_other_kind = length > 1 and queries == 1
        if row > first and (too_big or padded or starts_other_kind):
            ranges.append((first, row))
            first, new_queries, new_keys, tokens = row, length, start + length, 0
        queries, keys, tokens = new_queries, new_keys, tokens + length
    ranges.append((first, len(slots)))
    return ranges


def _group(slots: IntArray, starts: IntArray, lengths: IntArray, first: int, device: torch.device) -> AttentionGroup:
    """Build one group of rows that lie side by side from flat token ``first`` on."""
    count, queries = len(slots), int(lengths.max())
    stop, keys = first + int(lengths.sum()), int((starts + lengths).max())
    span = int(slots.max() - slots.min()) + 1
    # Reading idle slots in between costs less than copying the active ones while at least half are active.
    in_place = span == count if queries > 1 else span <= 2 * count
    ascending = bool((np.diff(slots) > 0).all())
    selected: slice | torch.Tensor
    if in_place and ascending:
        low = int(slots.min())
        selected, place, rows = slice(low, low + span), slots - low, span
    else:
        selected, place, rows = torch.from_numpy(slots).to(device), np.arange(count), count
    positions = np.zeros((rows, queries), dtype=np.int64)
    index = np.full((rows, queries), first, dtype=np.int64)
    column = np.arange(queries)
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    # A padded query repeats the row's last token, so that it has something to attend to; its output is not read.
    within = np.minimum(column[None], lengths[:, None] - 1)
    positions[place] = starts[:, None] + within
    index[place] = first + offsets[:, None] + within
    exact = rows == count and bool((lengths == queries).all())
    output = (place[:, None] * queries + column[None])[column[None] < lengths[:, None]]
    return AttentionGroup(
        first=first,
        stop=stop,
        slots=selected,
        rows=rows,
        keys=keys,
        query_index=None if exact else torch.from_numpy(index.reshape(-1)).to(device),
        output_index=None if exact else torch.from_numpy(output).to(device),
        positions=torch.from_numpy(positions).to(device),
    )
