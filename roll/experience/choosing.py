"""The groups of a step, chosen from those that may be given out: the same ones whenever the same are there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roll.experience.base import Reader
from roll.experience.priorities import Known


def choose(reader: Reader, count: int, candidates: Sequence[Known]) -> list[int] | None:
    """Return the numbers of the groups of a step, fresh ones first and each kind by priority.

    Args:
        reader: Who asks, with its priority and its share of fresh groups.
        count: How many groups.
        candidates: All that may be given out now.

    Returns:
        Their numbers, or ``None`` where too few are there, or too few fresh ones.

    Raises:
        ValueError: The priority of a group is no number.
    """
    ordered = sorted(candidates, key=lambda group: (-_rank(reader, group), group.uses, group.number))
    if reader.fresh_share is None:
        chosen = ordered[:count]
    else:
        replayed = [group for group in ordered if group.uses][: count - reader.fresh_of(count)]
        chosen = [group for group in ordered if not group.uses][: count - len(replayed)] + replayed
    return None if len(chosen) < count else [group.number for group in chosen]


def _rank(reader: Reader, group: Known) -> float:
    rank = float(reader.priority(group))
    if math.isnan(rank):
        raise ValueError(f"the priority of a group must be a number, and is not for {group}")
    return rank
