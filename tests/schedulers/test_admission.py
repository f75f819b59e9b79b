"""The rules of admission, checked against every way a run can go that a random walk finds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import group_of

from roll.schedulers.admission import Admission, DropReason


def test_a_step_that_is_trained_on_few_groups_takes_the_room_of_a_whole_one() -> None:
    books = Admission(4, 1.0, None, most=8)
    begun = books.admit()
    while begun:
        for number in begun:
            books.drop(number, group_of(number, []), DropReason.FILTERED)
        begun = books.admit()
    chosen = books.choose()
    assert chosen == []
    groups, _ = books.take(chosen, lambda group: False)
    assert len(groups) == 4 and len(books.admit()) == 4
    books.trained()
    assert len(books.admit()) == 4


def test_a_step_of_one_group_leaves_no_room_for_more_than_the_lead() -> None:
    books = Admission(4, 1.0, None, most=4)
    for number in books.admit():
        if number == 0:
            books.finish(number, group_of(number, []))
        else:
            books.drop(number, group_of(number, []), DropReason.FILTERED)
    chosen = books.choose()
    assert chosen == [0]
    books.take(chosen, lambda group: False)
    assert books.unfinished() == (8, [0]), "taken is not trained"
    assert len(books.admit()) == 4


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 4),
    ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.3, 2.0, 3.5]),
    window=st.one_of(st.none(), st.integers(0, 6)),
    most=st.integers(1, 4),
    walk=st.lists(st.integers(0, 2**16), min_size=40, max_size=120),
)
def test_no_group_is_staler_than_the_bound_whatever_finishes_when(
    size: int, ratio: float, window: int | None, most: int, walk: list[int]
) -> None:
    books = Admission(size, ratio, window, most * size)
    trained = 0
    admitted_at: dict[int, int] = {}
    running: list[int] = []
    used: Counter[int] = Counter()

    def admit() -> None:
        for number in books.admit():
            assert number not in admitted_at
            admitted_at[number] = trained
            running.append(number)
        assert books.live <= books.capacity

    for chance in walk:
        if not books.in_training:
            admit()
        chosen = None if books.in_training else books.choose()
        if chosen is not None and chance % 3:
            groups, dropped = books.take(chosen, lambda group: False)
            numbers = [int(group.group_id[6:]) for group in groups]
            used.update(numbers + [each.number for each in dropped])
            assert all(trained - admitted_at[number] <= books.max_staleness for number in numbers)
        elif books.in_training and chance % 5 == 0:
            trained += 1
            books.trained()
        elif running:
            number = running.pop(chance // 7 % len(running))
            group = group_of(number, [])
            if chance % 4:
                books.finish(number, group)
            else:
                books.drop(number, group, DropReason.FILTERED)
            admit()
        elif not books.in_training:
            assert books.choose() is not None, "nothing runs, so a step must be able to begin"
    assert max(used.values(), default=0) <= 1
