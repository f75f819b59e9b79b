"""A process reward model as verifier: what is made of the scores of steps."""

import pytest
from reward_support import asked, verdict

from roll.rendering.scored import split_steps
from roll.rewards import VerifierOptionError, make_verifier


def scored(*scores: float, **options):
    return make_verifier(
        "process_reward_model", options, {"score_steps": lambda answered: [list(scores)] * len(answered)}
    )


@pytest.mark.parametrize(("aggregate", "expected"), [("min", 0.5), ("mean", 0.7), ("last", 0.8), ("product", 0.32)])
def test_the_score_of_a_response_is_made_of_those_of_its_steps(aggregate: str, expected: float) -> None:
    found = verdict(scored(0.8, 0.5, 0.8, aggregate=aggregate), asked("a\nb\nc"))

    assert found.score == pytest.approx(expected) and found.metrics["steps"] == 3 and found.metrics["worst_step"] == 0.5
    assert verdict(scored(0.5, offset=-0.5, scale=4.0), asked("a")).score == 0


def test_the_model_reads_what_was_asked_and_the_response() -> None:
    seen = []

    def score_steps(answered):
        seen.extend(answered)
        return [[0.5] for _ in answered]

    made = make_verifier("process_reward_model", {"strip_thinking": True}, {"score_steps": score_steps})
    verdict(made, asked("<think>hm</think> yes", messages=[{"role": "user", "content": "well?"}]))
    assert seen == [([{"role": "user", "content": "well?"}], "yes")]


def test_empty_steps_are_none_and_an_empty_answer_is_one() -> None:
    assert split_steps("a\n\n b\n", "\n") == ["a", " b"]
    assert split_steps("  ", "\n") == [""]


@pytest.mark.parametrize(
    ("options", "said"), [({"aggregate": "most"}, "min, mean, last, product"), ({"separator": ""}, "tell steps apart")]
)
def test_options_that_cannot_be_are_said(options: dict, said: str) -> None:
    with pytest.raises(VerifierOptionError, match=said):
        scored(0.5, **options)
    with pytest.raises(VerifierOptionError, match="reward_pretrain"):
        make_verifier("process_reward_model")
