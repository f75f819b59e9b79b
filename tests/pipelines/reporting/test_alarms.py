"""What goes wrong in a run is said once, when it begins; a run that is well is left alone."""

from __future__ import annotations

import json
import math
import re

import pytest

from roll.pipelines.reporting.alarms import ALARMS, Alarms
from roll.pipelines.reporting.silence import WINDOW

WELL = {
    "rollout/status/error_env": 0.0,
    "rollout/status/error_timeout": 0.01,
    "rollout/status/error_reward": 0.0,
    "rollout/zero_variance_groups": 0.4,
    "rollout/success": 0.4,
    "rollout/reward": 0.5,
    "rollout/staleness/mean": 0.5,
    "sampler/log_prob_difference_mean": 0.004,
    "train/policy/entropy": 1.2,
}
ILL = {
    "errors": (
        {"rollout/status/error_timeout": 0.3},
        "of the episodes of the last 5 steps broke .error_timeout [23].%.",
    ),
    "no_variance": ({"rollout/zero_variance_groups": 0.95}, "In 95% of the groups .* nothing was learned"),
    "drift": ({"sampler/log_prob_difference_mean": 0.05}, "differ by 0.0[0-9]* on average, by 0.004 in the beginning"),
    "age": ({"rollout/staleness/mean": 3.0}, "sampled 1.0 versions of the weights ago, 0.5 in the beginning"),
    "entropy": ({"train/policy/entropy": 0.01}, "entropy 1.2 → 0.01, and success stays at 40%"),
}


def said(*steps: dict[str, float]) -> list[str]:
    alarms = Alarms()
    return [words for step in steps for words in alarms.step(WELL | step)]


def test_each_alarm_has_its_case() -> None:
    assert ILL.keys() == ALARMS.keys()


@pytest.mark.parametrize("name", ILL)
def test_what_goes_wrong_is_said_once_in_words(name: str) -> None:
    change, words = ILL[name]
    (found,) = said(*[{}] * 2 * WINDOW, *[change] * 4 * WINDOW)
    assert re.search(words, found)


@pytest.mark.parametrize("name", ILL)
def test_what_was_over_and_comes_again_is_said_again(name: str) -> None:
    change, _ = ILL[name]
    assert len(said(*[{}] * WINDOW, *[change] * 2 * WINDOW, *[{}] * 2 * WINDOW, *[change] * 2 * WINDOW)) == 2


@pytest.mark.parametrize("name", ILL)
def test_a_run_without_a_metric_is_never_warned_about_it(name: str) -> None:
    change, _ = ILL[name]
    alarms = Alarms()
    steps = [{key: value for key, value in step.items() if key not in change} for step in [WELL] * 9 * WINDOW]
    assert not [words for step in steps for words in alarms.step(step)]


def test_a_run_that_is_well_is_left_alone() -> None:
    assert not said(*[{}] * 60)


def test_a_policy_that_is_surer_because_it_is_better_is_left_alone() -> None:
    steps = [
        {
            "rollout/success": 0.3 + 0.65 * step / 60,
            "train/policy/entropy": 1.2 * math.exp(-step / 15),
            "rollout/zero_variance_groups": 0.3 + 0.65 * step / 60,
        }
        for step in range(60)
    ]
    assert not said(*steps)
    assert not said(*steps, *[steps[-1] | {"rollout/success": 0.95}] * 3 * WINDOW)


@pytest.mark.parametrize("name", ILL)
@pytest.mark.parametrize("at", [3, 12, 19, 22, 30])
def test_a_run_that_goes_on_says_what_one_that_never_stopped_would(name: str, at: int) -> None:
    change, _ = ILL[name]
    steps = [{}] * 2 * WINDOW + [change] * 2 * WINDOW + [{}] * 2 * WINDOW
    whole, alarms, found = Alarms(), Alarms(), list[list[str]]()
    for number, step in enumerate(steps):
        if number == at:
            alarms = Alarms(json.loads(json.dumps(alarms.state())))
        found.append(alarms.step(WELL | step))
        assert found[-1] == whole.step(WELL | step) and alarms.metrics() == whole.metrics()
    assert sum(map(len, found)) == 1


def test_an_alarm_is_a_metric_from_when_it_is_given_first() -> None:
    change, _ = ILL["errors"]
    alarms, seen = Alarms(), list[dict[str, float]]()
    for step in [{}] * 2 * WINDOW + [change] * 2 * WINDOW + [{}] * 2 * WINDOW:
        alarms.step(WELL | step)
        seen.append(alarms.metrics())
    assert seen[2 * WINDOW - 1] == {} and {"alarm/errors": 1.0} in seen and seen[-1] == {"alarm/errors": 0.0}
