from __future__ import annotations

import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from roll.rewards.answers import last_box, marked_answer
from roll.rewards.math_compare import compare

WRONG = [
    # two answers are not one
    ("9", "1 or 9"),
    ("9", r"\text{5 or 9}"),
    ("9", r"5 \text{ or } 9"),
    ("9", "5, 9"),
    ("9", "either 5 or 9"),
    ("9", "5 (or 9)"),
    ("9", "5 oder 9"),
    ("9", r"5\\9"),
    ("9", "(5,9)"),
    ("9", r"\{5,9\}"),
    ("9", "5 \\vee 9"),
    ("9", "5 = 9"),
    ("9", r"9 \approx 5"),
    ("5", "not 5"),
    ("5", "minus 5"),
    ("5 or 9", "9"),
    ("1,2,3", "1,2"),
    ("1,2", "1,2,3"),
    ("3", r"\pm 3"),
    ("2 hours and 30 minutes", "30"),
    ("2 hours and 30 minutes", "30 hours and 2 minutes"),
    # what stands side by side is not joined
    ("11/2", "1 1/2"),
    ("12", "1 2"),
    ("2 1/3", "21/3"),
    ("14", "5 9"),
    ("14", "5 9/1"),
    ("1", r"1\frac{0}{2}"),
    ("1", "1 0/2"),
    ("14", "{5}{9}"),
    ("14", r"5\quad 9"),
    ("14", r"5 \ldots 9"),
    ("14", r"\{5\}\{9\}"),
    ("111", "0,111"),
    ("5", "5_9"),
    # a letter, a case, a time is no unit, spelling or ratio
    ("3t", "3"),
    (r"\sigma", r"\Sigma"),
    ("X", "x"),
    ("12:00", "1:00"),
    ("12:30", "4:10"),
    ("5", "5 million"),
    (r"\$5", "x"),
    ("(1,2)", "(2,1)"),
    ("[0,1)", "(0,1)"),
]

RIGHT = [
    ("{1,2,3}", "1,2,3"),
    (r"\{1,2,3\}", "3, 2, 1"),
    ("5 or 9", "9 or 5"),
    ("1,2", "x=1 or x=2"),
    (r"1 \text{ and } 2", "1, 2"),
    (r"\pm 3", "3, -3"),
    ("(1,2)", "1,2"),
    ("(p,q)=(3,2)", "(3,2)"),
    ("2 hours and 30 minutes", "2 hours, 30 minutes"),
    ("2 hours and 30 minutes", r"2\text{ hours }30\text{ minutes}"),
    ("32348", r"\$32,\!348"),
    ("1,000,000", "1 000 000"),
    ("1.22", "1,22"),
    ("1.5", r"1\frac{1}{2}"),
    ("-1.5", r"-1\frac12"),
    (r"\$5", r"\$5.00"),
    ("$x+1$", "x+1"),
    ("12:00", "12:00"),
    ("5000000", "5 million"),
    ("25 cm^2", "25"),
    ("25", r"25\text{ cm}^2"),
    (r"\text{(A)}", "(A)"),
    ("y=2x+3", "2x+3"),
    ("2x+3", "y = 2x+3"),
    ("2x+y=3", "y+2x=3"),
    (r"x \in [1,2]", "[1,2]"),
    (r"(3,\infty)", "x>3"),
    (r"(-\infty,3)\cup(5,\infty)", "x<3 or x>5"),
    (r"\sqrt{2}", r"\sqrt{2} \approx 1.414"),
    (r"\frac{\sqrt{3}}{2}", "sqrt(3)/2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("10_8", "10_{8}"),
    (r"V_{1}:V_{2}=11:21", "11:21"),
    (r"\emptyset", r"\varnothing"),
]


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_a_wrong_answer_is_wrong(gold: str, answer: str) -> None:
    assert compare(gold, answer, 6) == {"equal": False}


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_a_right_answer_is_right(gold: str, answer: str) -> None:
    assert compare(gold, answer, 6) == {"equal": True}


@pytest.mark.parametrize("answer", [answer for _, answer in RIGHT])
def test_every_answer_equals_itself(answer: str) -> None:
    assert compare(answer, answer, 6) == {"equal": True}


NUMBERS = st.one_of(
    st.integers(-30, 300).map(str),
    st.integers(1, 3000).map(lambda number: f"{number / 100:g}"),
    st.tuples(st.integers(-9, 9), st.integers(2, 9)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    st.sampled_from([r"\sqrt{2}", r"2\pi", "x+1", "1,234", "50\\%", "x^2", r"\frac{x}{2}", "(1,2)", "[0,1]", "A"]),
)
KEPT_APART = [
    " or ", ", ", " and ", "; ", r" \text{ or } ", r"\text{ and }", " OR ", r"\lor ", r"\vee ", " oder ", r" \mid ",
    "} \\text{or} {", " maybe ", " (or) ", ",", ";", " / or / ", r"\mathrm{or}", r"\textit{ or }", "$ or $", "$, $",
    r"\) or \(", " , or ", " & ", " vs ", " not ", "?", r" \ldots ", " or maybe ", ", possibly ", " = or ",
]  # fmt: skip
SIDE_BY_SIDE = ["\n", r"\\", r"\quad ", r"\;", "~", "\\ ", " | ", "} {", r"\hspace{1cm}"]


@pytest.mark.exhaustive
@pytest.mark.long
@given(
    gold=NUMBERS, wrong=st.lists(NUMBERS, min_size=1, max_size=3), apart=st.sampled_from(KEPT_APART), last=st.booleans()
)
@example(gold="9", wrong=["1"], apart=" or ", last=True)
@settings(max_examples=400, deadline=None)
def test_a_right_answer_among_wrong_ones_is_wrong(gold: str, wrong: list[str], apart: str, last: bool) -> None:
    assume(not any(compare(gold, each, 6)["equal"] for each in wrong))
    hedged = apart.join([*wrong, gold] if last else [gold, *wrong])
    assume(apart != "," or not hedged.replace(",", "").replace("-", "").isdigit())  # 1,234 and 1,5 are numbers
    assert compare(gold, hedged, 6) == {"equal": False}


def equal_either_way(first: str, second: str) -> bool:
    """Whether one says the other: ``0/2`` is no answer to 0, but 0 is one to ``0/2``."""
    return compare(first, second, 6)["equal"] or compare(second, first, 6)["equal"]


@pytest.mark.long
@given(gold=NUMBERS, wrong=NUMBERS, apart=st.sampled_from(SIDE_BY_SIDE), last=st.booleans())
@example(gold="14", wrong="5", apart=r"\quad ", last=True)
@settings(max_examples=200, deadline=None)
def test_a_right_answer_beside_a_wrong_one_is_wrong(gold: str, wrong: str, apart: str, last: bool) -> None:
    """A product with 1 and a sum with 0 are the value itself, and no answer to anything else."""
    assume(not any(equal_either_way(each, wrong) for each in (gold, "0", "1", "-1")))
    assume(not equal_either_way("0", gold))
    assert compare(gold, apart.join([wrong, gold] if last else [gold, wrong]), 6) == {"equal": False}


@given(values=st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True), data=st.data())
@settings(max_examples=60, deadline=None)
def test_several_values_are_equal_in_any_order_and_only_all_of_them(values: list[int], data) -> None:
    gold = ", ".join(map(str, values))
    order = data.draw(st.permutations(values))
    assert compare(gold, " and ".join(map(str, order)), 6) == {"equal": True}
    assert compare(gold, ", ".join(map(str, order[1:])), 6) == {"equal": False}
    assert compare(gold, ", ".join(map(str, [*order, 51])), 6) == {"equal": False}


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{1},\boxed{2},\boxed{3}", "1, 2, 3"),
        (r"\boxed{1} and $\boxed{2}$.", "1, 2"),
        (r"\boxed{(2, 2)} \quad \text{and} \quad \boxed{(6, 2)}", "(2, 2), (6, 2)"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{1}. Wait, that is wrong. So \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{2} and then \boxed{3", "2"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"} \fbox{7}", "7"),
        (r"\boxed 5", "5"),
        (r"\\boxed{4}", "4"),
        ("none", None),
    ],
)
def test_the_last_box_and_those_beside_it_are_the_answer(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "{",
        "}",
        "\\",
        r"\boxed",
        r"\boxed ",
        r"\boxed{1}",
        r"\boxed{1}, ",
        "<answer>",
        "#### ",
        "####\n",
        "**",
        "$",
        " ",
        ",",
    ],
)
def test_finding_the_answer_takes_time_in_proportion_to_the_text(piece: str) -> None:
    """Each is quadratic if done badly: 200,000 characters would take minutes."""
    text = piece * (200_000 // len(piece))
    started = time.process_time()
    marked_answer(text)
    assert time.process_time() - started < 2.0


@pytest.mark.long
@pytest.mark.parametrize("piece", ["(", "{", "1,", "1 or ", "x=", "9 ", r"\frac", r"\text{a}", "a1", "1/", "^", "-"])
def test_reading_a_strange_answer_is_no_error_and_takes_no_time(piece: str) -> None:
    started = time.process_time()
    assert compare("7", piece * 5000, 6) == {"equal": False}
    assert compare("7", piece * 200, 6) == {"equal": False}
    assert time.process_time() - started < 20.0
