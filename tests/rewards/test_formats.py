from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_support import asked, verdict

from roll.rewards import VerifierOptionError, make_verifier

STRICT = "<think>\nwhy\n</think>\n<answer>\n42\n</answer>"


@pytest.mark.parametrize(
    ("response", "loose", "strict"),
    [
        (STRICT, 1, 1),
        ("<think>why</think><answer>42</answer>", 1, 0),
        ("  <think>a\nb</think>\n\n <answer>42</answer>\n", 1, 0),
        (STRICT + "\n", 1, 0),
        ("<think></think><answer></answer>", 1, 0),
        ("Sure! " + STRICT, 0, 0),
        (STRICT + " That is it.", 0, 0),
        ("<answer>42</answer><think>why</think>", 0, 0),
        ("<think>why</think>42", 0, 0),
        ("<think>why</think> so <answer>42</answer>", 0, 0),
        ("<think>why</think><answer>41</answer><answer>42</answer>", 0, 0),
        ("<think>a<think>b</think></think><answer>42</answer>", 0, 0),
        ("<think>\nwhy\n</think>\n<answer>\n41\n</answer>\n<answer>\n42\n</answer>", 0, 0),
        ("", 0, 0),
    ],
)
def test_tags_in_their_order(response: str, loose: int, strict: int) -> None:
    assert verdict(make_verifier("format"), asked(response)).score == loose
    assert verdict(make_verifier("strict_format"), asked(response)).score == strict


def test_a_tag_that_the_prompt_has_opened_counts() -> None:
    response = "why</think><answer>42</answer>"
    assert verdict(make_verifier("format"), asked(response)).score == 0.0
    assert verdict(make_verifier("format", {"prefix": "<think>"}), asked(response)).score == 1.0
    opened = make_verifier("strict_format", {"prefix": "<think>\n"})
    assert verdict(opened, asked(STRICT.removeprefix("<think>\n"))).score == 1.0


def test_a_pattern_of_ones_own_must_match_the_whole_response() -> None:
    made = make_verifier("format", {"pattern": r"Move: (up|down)"})
    assert [verdict(made, asked(text)).score for text in ("Move: up", "Move: up now", "left")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["format", "strict_format", "step"])
def test_a_pattern_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(VerifierOptionError, match=r"'\(' is no regular expression"):
        make_verifier(name, {"pattern": "("})


@pytest.mark.parametrize(
    ("response", "markers"),
    [
        ("Step 1: a\nStep 2: b", 2),
        ("1. a\n2. b\n3. c\n4. d", 4),
        ("- a\n* b", 2),
        ("First, a. Second, b", 1),
        ("First, a.\nFinally, b", 2),
        ("In 1. place, -1 and 2*3", 0),
        ("1.5 is no marker\n-3 neither\n**bold** too", 0),
        ("**Step 1**: a\n## Step 2", 2),
    ],
)
def test_steps_are_marked_at_the_start_of_a_line(response: str, markers: int) -> None:
    result = verdict(make_verifier("step"), asked(response))
    assert result.metrics == {"markers": markers}
    assert result.score == pytest.approx(min(1.0, markers / 3))


def overlong(tokens: int, limit: int = 100, **options) -> float | None:
    return verdict(
        make_verifier("overlong", options), asked("", response_tokens=tokens, max_response_tokens=limit)
    ).score


def test_soft_punishment_starts_at_the_buffer_and_ends_at_the_limit() -> None:
    assert [overlong(tokens, buffer=40) for tokens in (0, 60, 70, 100)] == [0.0, 0.0, -0.25, -1.0]
    assert overlong(90) == pytest.approx(-0.5), "the buffer is a fifth of the limit"
    assert overlong(90, penalty=0.5) == pytest.approx(-0.25)
    assert overlong(200, max_length=300, buffer=100) == 0.0


@given(tokens=st.integers(0, 500), buffer=st.integers(1, 100), penalty=st.floats(0, 5))
def test_soft_punishment_follows_its_formula(tokens: int, buffer: int, penalty: float) -> None:
    if tokens <= 100 - buffer:
        expected = 0.0
    elif tokens <= 100:
        expected = ((100 - buffer) - tokens) / buffer
    else:
        expected = -1.0
    assert overlong(tokens, buffer=buffer, penalty=penalty) == pytest.approx(penalty * expected)


def test_without_a_limit_there_is_no_punishment_but_an_error() -> None:
    result = verdict(make_verifier("overlong"), asked("", response_tokens=5))
    assert result.score is None and "max_length" in result.error


@pytest.mark.parametrize(
    "options", [{"buffer": 0}, {"penalty": -1.0}, {"max_length": 0}, {"buffer": 9, "max_length": 8}]
)
def test_options_of_the_punishment_that_make_no_sense_are_refused(options) -> None:
    with pytest.raises(VerifierOptionError):
        make_verifier("overlong", options)
