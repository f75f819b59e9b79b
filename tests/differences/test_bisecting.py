"""Delta debugging finds a smallest set, whatever it is."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from roll.differences.bisecting import smallest_cause


@given(st.integers(1, 12), st.data())
def test_what_is_needed_together_is_found_among_all_keys(count: int, data: st.DataObject) -> None:
    keys = [f"key{number}" for number in range(count)]
    needed = frozenset(data.draw(st.sets(st.sampled_from(keys), min_size=1)))
    assert set(smallest_cause(keys, lambda chosen: needed <= chosen)) == needed


def test_one_of_two_causes_is_enough() -> None:
    keys = [f"key{number}" for number in range(8)]
    found = smallest_cause(keys, lambda chosen: bool(chosen & {"key1", "key6"}))
    assert found in (["key1"], ["key6"])


def test_no_subset_of_what_is_found_shows_it() -> None:
    def shows(chosen: frozenset[str]) -> bool:
        return len(chosen) >= 3 or {"a", "f"} <= chosen

    found = smallest_cause(list("abcdef"), shows)
    assert shows(frozenset(found))
    assert not any(shows(frozenset(some)) for some in combinations(found, len(found) - 1))


def test_few_runs_are_needed_for_one_key_among_many() -> None:
    asked = []

    def shows(chosen: frozenset[str]) -> bool:
        asked.append(chosen)
        return "key37" in chosen

    assert smallest_cause([f"key{number}" for number in range(64)], shows) == ["key37"]
    assert len(asked) <= 12
