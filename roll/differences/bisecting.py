"""Which of many keys is behind a difference: delta debugging (Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def smallest_cause(keys: Sequence[str], shows: Callable[[frozenset[str]], bool]) -> list[str]:
    """Return a smallest set of keys that shows a difference: without any one of them it does not.

    Args:
        keys: All keys that differ; together they show it.
        shows: Tells whether some of them do. Called once for each set.
    """
    tried: dict[frozenset[str], bool] = {frozenset(keys): True, frozenset(): False}

    def test(chosen: Sequence[str]) -> bool:
        group = frozenset(chosen)
        if group not in tried:
            tried[group] = shows(group)
        return tried[group]

    left, parts = list(keys), 2
    while len(left) > 1:
        pieces = [left[start::parts] for start in range(parts)]
        rests = [[key for key in left if key not in piece] for piece in pieces]
        found = next((piece for piece in pieces if test(piece)), None)
        if found is not None:
            left, parts = found, 2
            continue
        rest = next((rest for rest in rests if parts > 2 and test(rest)), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left
