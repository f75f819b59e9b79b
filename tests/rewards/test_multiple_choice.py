from __future__ import annotations

import pytest
from reward_support import asked, verdict

from roll.rewards import Verdict, VerifierOptionError, make_verifier

CAPITALS = ["London", "Paris", "Rome", "Bern"]


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{(B)}", "B"),
        (r"\boxed{B. Paris}", "B"),
        ("<answer>B</answer>", "B"),
        ("<answer>The answer is B.</answer>", "B"),
        ("<answer>Paris</answer>", "B"),
        ("Paris", "B"),
        ("#### B", "B"),
        ("The answer is (B).", "B"),
        ("The correct answer is: **B**", "B"),
        ("Answer: B", "B"),
        ("I choose option B because A is not in France.", "B"),
        ("B is the right answer because the answer is B since A is wrong", "B"),
        ("The answer is A. No, the answer is B.", "B"),
        ("Both (A) and (C) are wrong, so (B)", "B"),
        ("It cannot be A.\nB", "B"),
        ("<think>A? The answer is A</think>\nThe answer is B", "B"),
        ("A city in France must be meant.", None),
        ("The answer is a city.", None),
        ("The answer is A city in France", None),
        ("Z", None),
        ("The answer is Z", None),
        ("", None),
        ("<think>The answer is B", None),
    ],
)
def test_the_letter_that_a_response_means(response: str, letter: str | None) -> None:
    made = make_verifier("multiple_choice")
    row = {"choices": CAPITALS}
    for truth in "ABCD":
        result = verdict(made, asked(response, truth, row=row))
        assert result == Verdict(float(truth == letter), {"answered": float(letter is not None)}), truth


@pytest.mark.parametrize(
    "choices",
    [CAPITALS, dict(zip("ABCD", CAPITALS, strict=True)), {"text": CAPITALS, "label": ["A", "B", "C", "D"]}],
)
@pytest.mark.parametrize("truth", ["B", "(B)", "b.", "Paris", " paris "])
def test_choices_and_ground_truths_in_every_form(choices, truth: str) -> None:
    request = asked("The answer is (B)", truth, row={"options": choices})
    assert verdict(make_verifier("multiple_choice", {"choices": "options"}), request).score == 1.0


def test_without_the_texts_letters_alone_decide() -> None:
    made = make_verifier("multiple_choice", {"letters": "ABC"})
    assert verdict(made, asked("C", "C")).score == 1.0
    assert verdict(made, asked("D", "C")) == Verdict(0.0, {"answered": 0.0})


@pytest.mark.parametrize("truth", ["E", "Madrid", "1", ""])
def test_a_ground_truth_that_is_no_choice_is_an_error(truth: str) -> None:
    result = verdict(make_verifier("multiple_choice"), asked("A", truth, row={"choices": CAPITALS, "id": "q7"}))
    assert result.score is None and "q7" in result.error and "ABCD" in result.error


@pytest.mark.parametrize("letters", ["", "AAB", "A-C"])
def test_letters_must_be_different_letters(letters: str) -> None:
    with pytest.raises(VerifierOptionError, match="letters"):
        make_verifier("multiple_choice", {"letters": letters})
