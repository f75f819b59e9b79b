"""The tree of sequences that begin alike, against sets of prefixes and plain comparisons."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roll.strategies.training.prefix_tree import PrefixOrder, PrefixTree, pack_by_prefixes

# Few tokens, so that many sequences begin alike; some are whole beginnings of others, some equal, some empty.
ROWS = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=10).filter(any)


def batch_of(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    return torch.tensor([row + [7] * (width - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])


def beginnings(rows: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[: place + 1]) for row in rows for place in range(len(row))}


@settings(deadline=None)
@given(ROWS)
def test_every_beginning_is_in_the_tree_once(rows: list[list[int]]) -> None:
    tree = PrefixTree.of(*batch_of(rows))
    places: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(rows):
        found = tree.places[number, : len(row)]
        assert tree.ids[found].tolist() == row
        assert tree.positions[found].tolist() == list(range(len(row)))
        for end in range(len(row)):
            assert places.setdefault(tuple(row[: end + 1]), int(found[end])) == int(found[end])
    assert sorted(places.values()) == list(range(len(tree.ids)))
    assert len(places) == len(beginnings(rows)) == int(tree.lengths.sum())


@settings(deadline=None)
@given(ROWS)
def test_what_a_token_may_see_is_its_own_sequence(rows: list[list[int]]) -> None:
    ids, lengths = batch_of(rows)
    tree = PrefixTree.of(ids, lengths)
    ends = tree.ends(lengths)
    at = {
        int(tree.places[row, end]): tuple(rows[row][: end + 1])
        for row in range(len(rows))
        for end in range(len(rows[row]))
    }
    for query, sequence in at.items():
        seen = {key for key in range(len(ends)) if query >= key and query < ends[key]}
        assert seen == {key for key, beginning in at.items() if sequence[: len(beginning)] == beginning}


@given(ROWS)
def test_neighbours_in_order_share_what_the_plain_comparison_says(rows: list[list[int]]) -> None:
    order = PrefixOrder.of(*batch_of(rows))
    assert sorted(order.rows) == list(range(len(rows))) and order.shared[0] == 0
    for (before, row), shared in zip(itertools.pairwise(order.rows), order.shared[1:], strict=True):
        assert rows[before][:shared] == rows[row][:shared]
        ends = shared in (len(rows[before]), len(rows[row]))
        assert ends or rows[before][shared] != rows[row][shared]


@given(ROWS, st.integers(8, 20), st.one_of(st.none(), st.integers(1, 4)))
def test_groups_hold_every_row_once_within_the_budget(rows: list[list[int]], tokens: int, most: int | None) -> None:
    lengths = [len(row) for row in rows]
    order = PrefixOrder.of(*batch_of(rows))
    groups = pack_by_prefixes(order, [[row] for row in range(len(rows))], lengths, tokens, most)
    assert sorted(row for group in groups for row in group) == list(range(len(rows)))
    for group in groups:
        assert len(beginnings([rows[row] for row in group])) <= tokens
        assert most is None or len(group) <= most
    assert pack_by_prefixes(order, [[row] for row in range(len(rows))], lengths, None) == [order.rows]


@given(ROWS.filter(lambda rows: len(rows) % 2 == 0))
def test_rows_that_belong_together_stay_together(rows: list[list[int]]) -> None:
    units = [[row, row + 1] for row in range(0, len(rows), 2)]
    lengths = [sum(len(rows[row]) for row in unit) for unit in units]
    groups = pack_by_prefixes(PrefixOrder.of(*batch_of(rows)), units, lengths, 20)
    assert sorted(unit for group in groups for unit in group) == list(range(len(units)))
    for group in groups:
        assert len(beginnings([rows[row] for unit in group for row in units[unit]])) <= 20


def test_a_row_that_fits_in_no_group_is_an_error() -> None:
    order = PrefixOrder.of(*batch_of([[1, 2], [1, 2, 3]]))
    with pytest.raises(ValueError, match="Sample 1 has 3 tokens, more than max_tokens_per_microbatch=2"):
        pack_by_prefixes(order, [[0], [1]], [2, 3], 2)


def test_the_history_of_turns_and_the_prompt_of_a_group_are_there_once() -> None:
    turns = [list(range(3 * turn)) for turn in range(1, 11)]
    assert len(PrefixTree.of(*batch_of(turns)).ids) == 30
    prompt = list(range(40))
    group = [[*prompt, *([member + 50] * 10)] for member in range(8)]
    assert len(PrefixTree.of(*batch_of(group)).ids) == 40 + 8 * 10
