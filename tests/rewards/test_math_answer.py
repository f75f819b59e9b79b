from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_support import asked, grades, verdict

from roll.rewards import Rubric, Verdict, VerifierOptionError, make_verifier
from roll.rewards.exact_numbers import equal_numbers, exact_number
from roll.rewards.math_answer import MathAnswer
from roll.rewards.math_compare import compare
from roll.rewards.worker_processes import WorkerProcesses

HANGS = r"\boxed{10^{10^{10^{10}}}}"

CASES = [
    # numbers, decided without math-verify
    ("1/2", "0.5", 1),
    ("1/2", r"\boxed{\frac{1}{2}}", 1),
    ("3/4", r"\boxed{\dfrac{3}{4}}", 1),
    ("0.333333", r"\boxed{1/3}", 1),
    (r"\frac{1}{3}", "<answer>0.33</answer>", 0),
    ("1,000", "<answer>1000</answer>", 1),
    ("50%", "<answer>0.5</answer>", 1),
    ("0.5", r"\boxed{50\%}", 1),
    ("50", "<answer>50%</answer>", 1),
    ("18", "<answer>$18</answer>", 1),
    ("-2", r"\boxed{−2}", 1),
    ("1.5", "<answer>1 1/2</answer>", 1),
    ("100000", "<answer>1e5</answer>", 1),
    ("42", "#### 42", 1),
    ("so 6 * 7 = 42\n#### 42", "<answer>42</answer>", 1),
    ("42", "<answer>43</answer>", 0),
    # expressions, by math-verify
    ("1000", r"so \boxed{1{,}000}", 1),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", 1),
    ("1,2", "The roots are $1$ and $2$.", 1),
    ("[0,1)", r"\boxed{[0, 1)}", 1),
    ("[0,1)", r"\boxed{(0,1)}", 0),
    ("(1,2)", r"\boxed{(2,1)}", 0),
    ("x>3", r"\boxed{(3,\infty)}", 1),
    ("5", r"\boxed{5\text{ cm}}", 1),
    ("5 cm", r"\boxed{5}", 1),
    ("5", "<answer>5 apples</answer>", 1),
    ("x^2+1", r"\boxed{1+x^2}", 1),
    ("(x+1)^2", r"\boxed{x^2+2x+1}", 1),
    ("x^2+1", r"\boxed{x^2+2}", 0),
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}", 1),
    ("x=5", r"\boxed{5}", 1),
    ("5", r"\boxed{x=5}", 1),
    ("6.283185", r"\boxed{2\pi}", 1),
    (r"90^\circ", r"\boxed{90}", 1),
    ("10^{10}", r"\boxed{10000000000}", 1),
    ("6", "<answer>2*3 = 6</answer>", 1),
    ("2*3", "<answer>6</answer>", 1),
    # a plain number that is left to be calculated is no answer: else whoever repeats the question is right
    ("6", "<answer>2*3</answer>", 0),
    ("17", "To calculate 20 - 3, you can use your fingers", 0),
    ("17", "To calculate $20 - 3$, you can use your fingers", 0),
    ("17", "20 - 3 = 17", 1),
    ("17", r"\boxed{17 = 20 - 3}", 1),
    ("17", r"\boxed{20-3}", 0),
    ("x=17", r"\boxed{20-3}", 0),
    ("17", r"\boxed{x=20-3}", 0),
    ("17", r"\boxed{20-3=17}", 1),
    ("5", r"\boxed{20/4}", 0),
    ("5", r"\boxed{\frac{20}{4}}", 0),
    ("5", "so it is 20 / 4", 0),
    ("5", r"\boxed{20 \div 4}", 0),
    ("5", r"\boxed{(20)/(4)}", 0),
    ("5", r"\boxed{\sqrt{25}}", 0),
    ("10", r"\boxed{\binom{5}{2}}", 0),
    ("120", r"\boxed{5!}", 0),
    ("1024", r"\boxed{2^{10}}", 0),
    ("2^{10}", r"\boxed{1024}", 1),
    ("1.5", r"\boxed{3\cdot\frac{1}{2}}", 0),
    ("3, 9", r"\boxed{1+2, 9}", 0),
    ("30000", r"\boxed{3\times 10^4}", 1),
    ("0.0015", r"\boxed{1.5\cdot10^{-3}}", 1),
    ("10000", r"\boxed{10^4}", 1),
    ("-1.5", r"\boxed{-1\frac{1}{2}}", 1),
    ("90", r"\boxed{90^\circ}", 1),
    ("0.1", "it is 10%", 1),
    ("1.414214", r"\boxed{\sqrt{2}}", 1),
    ("42", "it is **42**.", 1),
    ("3/2", r"\boxed{6/4}", 1),
    ("12", r"Therefore $3\times 4 = 12$.", 1),
    ("42", "The answer is 42.", 1),
    ("42", "<answer>The answer is 42.</answer>", 1),
    ("3", "first 3, then 4", 0),
    # words
    ("Tuesday", "<answer>tuesday</answer>", 1),
    ("Tuesday", "<answer>Monday</answer>", 0),
    # what is no answer
    ("7", "", 0),
    ("7", "   ", 0),
    ("7", "<think>7</think> I do not know.", 0),
    ("7", "<think>it is 7", 0),
    ("7", "<think>8</think> \\boxed{7}", 1),
    ("2", r"\boxed{1} no, \boxed{2}", 1),
    ("2", r"\boxed{2} and then \boxed{3", 1),
]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module")
def verifier(loop: asyncio.AbstractEventLoop) -> Iterator[MathAnswer]:
    """One for all cases: starting a process takes longer than grading."""
    made = make_verifier("math", {"processes": 1})
    yield made
    loop.run_until_complete(made.close())


@pytest.mark.processes
@pytest.mark.parametrize(("truth", "response", "score"), CASES)
def test_answers_that_mean_the_same_are_equal(verifier, loop, truth: str, response: str, score: int) -> None:
    assert loop.run_until_complete(verifier(asked(response, truth))) == Verdict(
        float(score), {"answered": float(bool(response.split()) and "<think>it" not in response)}
    )


@pytest.mark.processes
@pytest.mark.parametrize("truth", [r"\frac{1}{", r"x = \sqrt{", "", "  "])
def test_a_ground_truth_that_cannot_be_read_is_an_error_that_names_the_row(verifier, loop, truth: str) -> None:
    result = loop.run_until_complete(verifier(asked("<answer>1</answer>", truth, row={"id": 17}, tag="algebra")))
    assert result.score is None
    assert repr(truth) in result.error and "id 17" in result.error and "algebra" in result.error


def test_a_row_without_ground_truth_is_an_error() -> None:
    result = verdict(make_verifier("math"), asked("1", None, row={"question": "?"}))
    assert result.score is None and "'ground_truth'" in result.error and "question" in result.error


def crash(*arguments):
    raise SystemExit("grammar file is broken")


@pytest.mark.processes
def test_a_crash_of_the_grader_is_no_score_and_not_zero() -> None:
    broken = MathAnswer()
    broken._processes = WorkerProcesses(crash, 1)
    rubric = Rubric([("math", 1.0, broken)])
    (grade,) = grades(rubric, asked(r"\boxed{x}", "y"))
    assert grade.score is None and not grade.correct
    assert "grammar file is broken" in grade.error
    assert grade.metrics["math/error"] == 1.0


@pytest.mark.processes
def test_a_comparison_that_hangs_costs_its_time_and_no_other_grade() -> None:
    async def run():
        math = make_verifier("math", {"timeout": 2.0, "processes": 2})
        rubric = Rubric([("math", 1.0, math)], parallel=0)
        await asyncio.gather(*(rubric.grade(asked(r"\boxed{1+x}", "x+1")) for _ in range(2)))  # starts both
        hanging = asyncio.create_task(rubric.grade(asked(HANGS, "5")))
        await asyncio.sleep(0.1)
        others = await asyncio.gather(
            *(rubric.grade(asked(rf"\boxed{{{index}+x}}", f"x+{index}")) for index in range(5))
        )
        assert not hanging.done()
        grade = await hanging
        after = await rubric.grade(asked(r"\boxed{2+x}", "x+2"))
        await rubric.close()
        return others, grade, after

    others, grade, after = asyncio.run(run())
    assert [other.score for other in others] == [1.0] * 5
    assert grade.score is None and "more than 2 s" in grade.error
    assert after.score == 1.0, "the process that died was not replaced"


def grading_processes(parent: int | None = None) -> list[psutil.Process]:
    children = psutil.Process(parent).children()
    return [child for child in children if _is_grading(child)]


def _is_grading(process: psutil.Process) -> bool:
    try:
        return "worker_main.py" in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_hanging_process_ends_by_itself_when_its_parent_is_gone() -> None:
    script = f"""
        import asyncio, os, sys
        from roll.rewards import RewardRequest, make_verifier
        async def run():
            math = make_verifier("math", {{"timeout": 1.0, "processes": 1}})
            await math(RewardRequest([], "<answer>1+x</answer>", "x+1"))
            task = asyncio.create_task(math(RewardRequest([], {HANGS!r}, "5")))
            await asyncio.sleep(0.2)
            print("hanging", flush=True)
            sys.stdin.readline()
            os._exit(1)
        asyncio.run(run())
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], **pipes) as parent:
        assert parent.stdout.readline() == "hanging\n"
        (child,) = grading_processes(parent.pid)
        parent.kill()
    assert not psutil.wait_procs([child], timeout=100)[1]


@pytest.mark.exhaustive
@pytest.mark.processes
def test_the_rubrics_time_out_kills_the_process_at_work() -> None:
    before = set(grading_processes())  # of the other tests in this file

    async def run():
        math = make_verifier("math", {"timeout": 60.0, "processes": 1})
        rubric = Rubric([("math", 1.0, math)], timeout=5.0)
        await rubric.grade(asked(r"\boxed{1+x}", "x+1"))
        rubric.timeout = 0.3
        cut = await rubric.grade(asked(HANGS, "5"))
        for _ in range(100):
            if set(grading_processes()) == before:
                break
            await asyncio.sleep(0.05)
        assert set(grading_processes()) == before
        rubric.timeout = 10.0
        after = await rubric.grade(asked(r"\boxed{2+x}", "x+2"))
        await rubric.close()
        return cut, after

    cut, after = asyncio.run(run())
    assert cut.score is None and "0.3 s" in cut.error
    assert after.score == 1.0


@pytest.mark.processes
def test_one_verifier_serves_one_event_loop_after_another() -> None:
    math = make_verifier("math")
    request = asked(r"\boxed{1+x}", "x+1")
    assert [asyncio.run(math(request)).score for _ in range(2)] == [1.0, 1.0]
    asyncio.run(math.close())


def test_acc_wants_a_marked_answer() -> None:
    acc = make_verifier("acc")
    scores = [verdict(acc, asked(text, "42")).score for text in ("42", "<answer>42</answer>", r"\boxed{42}", "#### 42")]
    assert scores == [0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("7 plus 35 makes 42", 1),
        ("42 is not 41", 0),
        ("It costs $1,042.00 in all", 0),
        ("x2 = 42.", 1),
        ("none", 0),
        ("so 3-42", 1),
        ("-42", 0),
        ("84/2", 0),
        ("84/2 = 42", 1),
        ("42 1", 0),
    ],
)
def test_base_acc_compares_the_last_number(response: str, score: int) -> None:
    assert verdict(make_verifier("base_acc"), asked(response, "42")).score == score


def test_base_acc_refuses_a_ground_truth_that_is_no_number() -> None:
    result = verdict(make_verifier("base_acc"), asked("x", "x+1"))
    assert result.score is None and "plain numbers" in result.error


@pytest.mark.parametrize(("finish_reason", "score"), [("stop", 1.0), ("length", 0.0)])
def test_an_open_answer_tag_counts_unless_the_response_was_cut_off(finish_reason: str, score: float) -> None:
    request = asked("<answer>42", "42", finish_reason=finish_reason)
    assert verdict(make_verifier("math", {"answer_in": ["tag"]}), request).score == score


def test_a_wrong_place_for_answers_names_the_nearest() -> None:
    with pytest.raises(VerifierOptionError, match="'boxed'"):
        make_verifier("math", {"answer_in": ["tag", "boxd"]})


NUMBERS = st.one_of(
    st.integers(-3000, 3000).map(str),
    st.integers(0, 3_000_000).map(lambda number: f"{number:,}"),
    st.decimals(-50, 50, places=3).map(str),
    st.tuples(st.integers(-30, 30), st.integers(1, 12)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
)


@pytest.mark.long
@given(first=NUMBERS, second=NUMBERS, same=st.booleans())
@settings(max_examples=150, deadline=None)
def test_exact_comparison_of_numbers_agrees_with_math_verify(first: str, second: str, same: bool) -> None:
    second = first if same else second
    left, right = exact_number(first), exact_number(second)
    assert left is not None and right is not None
    assert compare(first, second, 6) == {"equal": equal_numbers(left, right)}
