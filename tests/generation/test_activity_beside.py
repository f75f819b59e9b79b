"""Two engines that wait for quiet take turns, and neither form a batch while the other works."""

from __future__ import annotations

import asyncio

from roll.generation import Activity, NoActivity


def is_quiet(activity: Activity) -> bool:
    async def asked() -> bool:
        try:
            await asyncio.wait_for(activity.quiescent(), 0.02)
        except TimeoutError:
            return False
        return True

    return asyncio.run(asked())


def test_what_asks_the_second_engine_is_work_outside_the_first() -> None:
    first = Activity()
    second = first.beside()
    with first.outside_engine(), second.outside_engine():
        assert (is_quiet(first), is_quiet(second)) == (False, False)
        second.leave_env()  # it asks; the other still works outside
        assert (is_quiet(first), is_quiet(second)) == (False, False)
        first.leave_env()  # the other asks the first engine, which waits for the second
        assert (is_quiet(first), is_quiet(second)) == (False, True)
        second.enter_env()
        assert (is_quiet(first), is_quiet(second)) == (False, False)
        first.enter_env()
    assert (first.outside, second.outside) == (0, 0)


def test_a_third_engine_goes_before_the_second() -> None:
    first = Activity()
    second = first.beside()
    third = second.beside()
    with second.outside_engine(), third.outside_engine():
        second.leave_env()
        third.leave_env()
        assert (is_quiet(first), is_quiet(second), is_quiet(third)) == (False, False, True)
        third.enter_env()
        third.leave_env()
        third.enter_env()
        assert not is_quiet(second)
        second.enter_env()


def test_who_waits_for_the_second_is_woken_by_what_happens_at_the_first() -> None:
    async def run() -> bool:
        first = Activity()
        second = first.beside()
        first.enter_env()
        waiting = asyncio.ensure_future(second.quiescent())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.leave_env()
        await asyncio.wait_for(waiting, 1)
        return True

    assert asyncio.run(run())


def test_where_nobody_waits_it_is_always_quiet() -> None:
    nobody = NoActivity()
    assert nobody.beside() is nobody and is_quiet(nobody)
