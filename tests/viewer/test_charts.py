"""Histograms: bars that differ in height only for how often values occur."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.viewer.charts import BINS, Bins, histogram


@given(st.integers(-50, 50), st.integers(0, 5000))
def test_every_interval_of_whole_numbers_holds_as_many_of_them_and_together_they_hold_all(low: int, span: int) -> None:
    bins = Bins.covering(low, low + span, whole=True)
    held = [int((value - bins.low) // bins.size) for value in range(low, low + span + 1)]
    assert set(held) == set(range(bins.number)) and bins.number <= BINS
    assert {held.count(bin) for bin in range(bins.number - 1)} <= {bins.size}


def test_turns_have_a_bar_each_without_gaps() -> None:
    drawn = histogram("turns", [(turn - 1, 10 * turn) for turn in range(1, 11)], Bins.covering(1, 10, whole=True), 10)
    assert drawn is not None and drawn.most == 100
    assert [bar.x for bar in drawn.bars] == [30.0 * number for number in range(10)]
    assert drawn.bars[2].hint == "3: 30" and drawn.bars[9].height == 120


@pytest.mark.parametrize("high", [0.5, 2.0])
def test_scores_are_cut_into_equal_intervals_and_one_score_alone_has_its_place(high: float) -> None:
    bins = Bins.covering(0.5, high, whole=False)
    assert bins.number == BINS and bins.size > 0
    assert bins.words(0).startswith("0.5 to ")
