"""What choosing the groups of a step costs with very many of them, and that it is what a look at all of them finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import group_of

from roll.schedulers.admission import Admission, DropReason
from tests.lines import lines_run


def plain_choice(books: Admission, trained: int, window: int | None, without_late: bool) -> list[int] | None:
    """Return the groups of the next step by the rules alone, with a look at every group."""
    live = list(books._live.values())
    size, ready = books.groups_per_step, sum(each.group is not None for each in live)
    running = len(live) - ready
    if ready < size and (running or not books.is_exhausted):
        return None
    seen = live if window is None else live[: size + window]
    chosen = [each.number for each in seen if each.group is not None][:size]
    if len(chosen) < size:
        return chosen if books.is_exhausted and not running else None
    if books.additional:
        return chosen
    if books.spare:
        return chosen if without_late or chosen == [each.number for each in live[:size]] else None
    rest = [each for each in live if each.number not in chosen]
    in_time = (trained + 1 + place // size <= each.trained + books.max_staleness for place, each in enumerate(rest))
    return chosen if all(in_time) else None


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 4),
    kind=st.sampled_from(["ahead", "ahead", "ahead", "spare", "additional"]),
    ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.3, 2.0, 3.5]),
    window=st.one_of(st.none(), st.integers(0, 6)),
    data=st.data(),
)
def test_a_step_gets_what_a_look_at_every_group_finds(
    size: int, kind: str, ratio: float, window: int | None, data: st.DataObject
) -> None:
    beyond = data.draw(st.integers(1, 3))
    if kind == "ahead":
        books = Admission(size, ratio, window, 2 * size)
    elif kind == "spare":
        books, window = Admission(size, 0.0, None, 2 * size + beyond, spare=beyond), None
    else:
        books, window = Admission(size, 0.0, None, 2 * size, additional=beyond), 0
    trained = 0
    running = books.admit()
    for _ in range(data.draw(st.integers(0, 60))):
        late = data.draw(st.booleans())
        chosen = None
        if not books.in_training:
            chosen = books.choose(late)
            assert chosen == plain_choice(books, trained, window, late)
        step = data.draw(st.sampled_from(["finish", "finish", "finish", "drop", "stale", "take", "trained"]))
        if step in ("finish", "drop") and running:
            number = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if step == "finish":
                books.finish(number, group_of(number, []))
            else:
                books.drop(number, group_of(number, []), DropReason.FILTERED)
            running += books.admit()
        elif step == "stale" and not books.in_training and kind == "ahead" and chosen:
            books.drop(chosen[0], books.group(chosen[0]), DropReason.STALE)
            running += books.admit()
        elif step == "take" and chosen:
            aborted = books.take_back(chosen[-1]) if books.additional else []
            aborted = books.give_up(chosen)[1] if books.spare else aborted
            running = [number for number in running if number not in aborted]
            books.take(chosen, lambda group: False)
        elif step == "trained" and books.in_training:
            books.trained()
            trained += 1
            running += books.admit()


@pytest.mark.parametrize("window", [None, 0])
def test_what_choosing_costs_does_not_grow_with_the_number_of_groups(window: int | None) -> None:
    """Counted in lines of Python that run, which are the same on every machine."""

    def cost(size: int) -> int:
        books = Admission(size, 1.0, window, most=2 * size)
        first = books.admit()
        for number in first[:size]:
            books.finish(number, group_of(number, []))
        books.take(first[:size], lambda group: False)
        books.trained()
        last = [*first[size:], *books.admit()][::-1]
        with lines_run() as lines:
            for number in last:  # the oldest ends last, and every group that ends asks
                books.finish(number, group_of(number, []))
                assert (books.choose() is None) == (number != size)
        return lines.counted

    assert cost(1024) < 1.5 * 16 * cost(64)
