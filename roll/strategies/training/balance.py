"""Micro-batches of ranks that pass through the layers together: equally many, and of similar size at the same time."""

from __future__ import annotations

from collections.abc import Sequence


def spread(
    groups: Sequence[Sequence[int]],
    lengths: Sequence[int],
    count: int,
    *,
    packed: bool,
    max_tokens: int | None,
    max_samples: int | None,
) -> list[list[int]]:
    """Deal the samples of ``groups`` to ``count`` micro-batches, or to as many as there are samples.

    Ranks with little work would otherwise compute empty passes while others compute full ones. Packed samples are dealt
    longest first, each to the micro-batch with the fewest tokens (Graham, 1969: the largest is at most a third above
    the best split); padded ones stay beside samples of similar length, and the largest micro-batch is halved.

    Args:
        groups: What the caps allow, of each micro-batch the indices; padded ones longest first.
        lengths: Tokens per sample.
        count: How many micro-batches the rank with the most has.
        packed: Whether samples are laid end to end.
        max_tokens: Hard cap on tokens per micro-batch; ``None`` for no cap.
        max_samples: Hard cap on samples per micro-batch; ``None`` for no cap.

    Returns:
        Micro-batches within the caps, largest first; a pure function of the arguments.
    """

    def tokens(group: Sequence[int]) -> int:
        return sum(lengths[i] for i in group) if packed else len(group) * max(lengths[i] for i in group)

    dealt = _deal(groups, lengths, count, max_tokens, max_samples) if packed else None
    result = [list(group) for group in groups] if dealt is None else dealt
    while len(result) < count:
        largest = max((group for group in result if len(group) > 1), key=tokens, default=None)
        if largest is None:
            break
        # Halves of what keeps to the caps keep to them too.
        result.append(largest[len(largest) // 2 :])
        del largest[len(largest) // 2 :]
    return sorted(result, key=lambda group: -tokens(group))


def _deal(
    groups: Sequence[Sequence[int]],
    lengths: Sequence[int],
    count: int,
    max_tokens: int | None,
    max_samples: int | None,
) -> list[list[int]] | None:
    """Deal longest first; ``None`` where the caps leave a sample without a place."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted((i for group in groups for i in group), key=lambda i: (-lengths[i], i)):
        open_bins = (
            place
            for place in range(count)
            if (max_tokens is None or loads[place] + lengths[index] <= max_tokens)
            and (max_samples is None or len(bins[place]) < max_samples)
        )
        place = min(open_bins, key=lambda place: (loads[place], len(bins[place])), default=None)
        if place is None:
            return None
        bins[place].append(index)
        loads[place] += lengths[index]
    return [group for group in bins if group]
