from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_support import asked, grades

from roll.rewards import Grade, Rubric, Verdict
from roll.rewards.concurrency import ConcurrencyLimit
from roll.rewards.functions import FunctionVerifier


def always(value, metrics=None):
    async def verifier(request):
        return Verdict(value, metrics or {})

    return verifier


async def raises(request):
    return 1 / 0


def backtracks(request):
    """The expression runs for ages in C and never lets go of the interpreter."""
    return float(re.match(r"(a+)+$", "a" * 60 + "b") is not None)


async def ignores_its_cancellation(request):
    while True:
        try:
            await asyncio.sleep(2.0)
            return 1.0
        except asyncio.CancelledError:
            continue


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-5, 5)), min_size=1, max_size=5))
def test_a_grade_is_the_sum_of_its_parts(values: list[tuple[float, float]]) -> None:
    rubric = Rubric([(f"v{index}", weight, always(score)) for index, (weight, score) in enumerate(values)])
    (grade,) = grades(rubric, asked(""))
    assert grade.score == pytest.approx(sum(weight * score for weight, score in values))
    assert grade.score == sum(grade.parts.values())
    assert list(grade.raw.values()) == [score for _, score in values]


def test_weight_zero_is_reported_and_never_rewarded() -> None:
    (grade,) = grades(Rubric([("a", 1.0, always(0.5)), ("b", 0, always(9.0, {"n": 2}))]), asked(""))
    assert grade == Grade(
        score=0.5,
        parts={"a": 0.5, "b": 0.0},
        raw={"a": 0.5, "b": 9.0},
        metrics={"a/error": 0.0, "b/n": 2.0, "b/error": 0.0},
    )


def test_a_failing_verifier_of_weight_zero_leaves_the_grade_known() -> None:
    (grade,) = grades(Rubric([("a", 1.0, always(1.0)), ("b", 0, raises)]), asked(""))
    assert grade.score == 1.0 and grade.correct
    assert "ZeroDivisionError" in grade.error and grade.metrics["b/error"] == 1.0


def test_an_exception_makes_the_grade_unknown_and_says_where_it_was_raised() -> None:
    (grade,) = grades(Rubric([("a", 1.0, always(1.0)), ("b", 0.5, raises)]), asked(""))
    assert grade.score is None
    assert grade.parts == {"a": 1.0}
    assert grade.error.startswith("b: ZeroDivisionError: division by zero (test_rubric.py:")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", [1], None])
def test_what_is_no_finite_number_is_no_score(value) -> None:
    async def verifier(request):
        return value

    (grade,) = grades(Rubric([("odd", 1.0, verifier)]), asked(""))
    assert grade.score is None and grade.error.startswith("odd")


def test_the_first_verifier_decides_what_is_correct() -> None:
    def rubric(first: float | None) -> Rubric:
        return Rubric([("a", 0.1, always(first)), ("b", 1.0, always(1.0))], success_threshold=0.8)

    assert [grades(rubric(first), asked(""))[0].correct for first in (0.7, 0.8, None)] == [False, True, False]


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize("stuck", [FunctionVerifier(backtracks), ignores_its_cancellation], ids=["C", "coroutine"])
def test_a_verifier_that_hangs_is_given_up_and_the_others_are_not_touched(stuck) -> None:
    beats = []

    async def heart() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run() -> list[Grade]:
        rubric = Rubric([("a", 1.0, always(1.0)), ("stuck", 1.0, stuck)], timeout=1.5, parallel=8)
        beating = asyncio.create_task(heart())
        results = await asyncio.gather(*(rubric.grade(asked("")) for _ in range(4)))
        beating.cancel()
        return results

    results = asyncio.run(asyncio.wait_for(run(), 300))
    assert all(grade.score is None and grade.raw == {"a": 1.0} for grade in results)
    assert {grade.error for grade in results} == {"stuck: no verdict after 1.5 s"}
    # A busy machine may halt for seconds; what the expression holds up, it holds up until it is killed.
    assert max(second - first for first, second in itertools.pairwise(beats)) < 60, "the event loop stood still"


@pytest.mark.processes
def test_a_stuck_function_does_not_keep_the_interpreter_alive() -> None:
    script = """
        import asyncio, re
        from roll.rewards import RewardRequest, Rubric
        from roll.rewards.functions import FunctionVerifier
        def stuck(request):
            re.match(r"(a+)+$", "a" * 60 + "b")
        rubric = Rubric([("stuck", 1.0, FunctionVerifier(stuck))], timeout=0.05)
        print(asyncio.run(rubric.grade(RewardRequest([], ""))).error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "stuck: no verdict after 0.05 s"


def test_verifiers_of_a_response_run_at_the_same_time() -> None:
    meeting = asyncio.Barrier(3)

    async def meets(request):
        await meeting.wait()
        return 1.0

    (grade,) = grades(Rubric([(name, 1.0, FunctionVerifier(meets)) for name in "abc"], timeout=10), asked(""))
    assert grade.score == 3.0


class Watched:
    """Counts the calls that are under way."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def __call__(self, request) -> Verdict:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        return Verdict(1.0)


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (3, 3), (0, 20)])
def test_as_many_responses_are_graded_at_a_time_as_parallel_says(parallel: int, most: int) -> None:
    watched = Watched()
    results = grades(Rubric([("w", 1.0, watched)], parallel=parallel), *[asked("")] * 20)
    assert watched.most == most
    assert [grade.score for grade in results] == [1.0] * 20


def test_rubrics_can_share_a_limit() -> None:
    watched = Watched()
    limit = ConcurrencyLimit(2)
    first, second = (Rubric([("w", 1.0, watched)], parallel=8, shared_limit=limit) for _ in range(2))

    async def run() -> None:
        await asyncio.gather(*(rubric.grade(asked("")) for rubric in (first, second) for _ in range(10)))

    asyncio.run(run())
    assert watched.most == 2


@pytest.mark.long
def test_waiting_for_a_slot_does_not_count_towards_the_time_out() -> None:
    async def slow(request):
        await asyncio.sleep(0.1)
        return 1.0

    # Together they take longer than one may.
    results = grades(Rubric([("slow", 1.0, slow)], parallel=1, timeout=1.5), *[asked("")] * 20)
    assert [grade.score for grade in results] == [1.0] * 20


@pytest.mark.long
def test_waiting_for_a_place_inside_a_verifier_does_not_count_either() -> None:
    limit = ConcurrencyLimit(1)

    async def slow(request):
        async with limit.slot():
            await asyncio.sleep(0.1)
        return 1.0

    results = grades(Rubric([("slow", 1.0, slow)], parallel=0, timeout=1.5), *[asked("")] * 20)
    assert [grade.score for grade in results] == [1.0] * 20


def test_cancelling_a_grade_cancels_its_verifiers() -> None:
    cancelled = []

    async def waits(request):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def run() -> None:
        task = asyncio.create_task(Rubric([("waits", 1.0, waits)]).grade(asked("")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(run())
    assert cancelled == [True]


def test_a_verifier_that_cancels_itself_does_not_cancel_the_run() -> None:
    async def odd(request):
        raise asyncio.CancelledError

    (grade,) = grades(Rubric([("odd", 1.0, odd)]), asked(""))
    assert grade.score is None and grade.error == "odd: the verifier cancelled itself"


@pytest.mark.processes
def test_a_grader_that_calls_exit_does_not_end_the_run() -> None:
    def leaves(request):
        sys.exit(3)

    (grade,) = grades(Rubric([("leaves", 1.0, FunctionVerifier(leaves))]), asked(""))
    assert grade.score is None and "SystemExit: 3" in grade.error


@pytest.mark.parametrize(
    ("terms", "options"),
    [
        ([], {}),
        ([("a", 1.0, always(1)), ("a", 2.0, always(1))], {}),
        ([("a", 1.0, always(1))], {"timeout": 0}),
        ([("a", 1.0, always(1))], {"parallel": -1}),
    ],
)
def test_a_rubric_that_cannot_work_is_refused(terms, options) -> None:
    with pytest.raises(ValueError):
        Rubric(terms, **options)
