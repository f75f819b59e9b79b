"""What a short training says about an environment."""

from __future__ import annotations

import pytest

from roll.certificates import Status, Target
from roll.certificates.learning import Training, judge_training, train

RISING = [0.1, 0.12, 0.1, 0.11, 0.1, 0.2, 0.3, 0.4, 0.41, 0.4, 0.42, 0.4]
FLAT = [0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2]


@pytest.mark.parametrize(
    ("training", "status", "words"),
    [
        (Training(RISING, [1.0] * 12, [0.1] * 12), Status.PASSED, "0.106 → 0.406"),
        (Training(FLAT, [0.01] * 12, [0.1] * 12), Status.UNSURE, "hardly ever says an action"),
        (Training(FLAT, [1.0] * 12, [0.95] * 12), Status.UNSURE, "95% of the groups have no variance"),
        (Training(FLAT, [1.0] * 12, [0.1] * 12), Status.UNSURE, "in so few steps"),
        (Training((), failure="no room for the prompt"), Status.UNSURE, "no room for the prompt"),
        (None, Status.NOT_APPLICABLE, "Only certify trains"),
    ],
)
def test_a_training_is_judged_by_its_rewards_and_never_makes_an_environment_unfit(
    training: Training | None, status: Status, words: str
) -> None:
    finding = judge_training(training)
    assert finding.status is status and words in finding.seen


@pytest.mark.processes
@pytest.mark.exhaustive
def test_a_class_that_no_tag_names_is_trained_on() -> None:
    training = train(Target("examples.custom_env:TreasureHunt"), 1)
    assert not training.failure
    assert len(training.rewards) == len(training.valid) == 1
    assert judge_training(training).status in (Status.PASSED, Status.UNSURE)
