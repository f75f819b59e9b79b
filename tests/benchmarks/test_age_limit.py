"""How fast steps can be where groups may only get so old, against what can be said without computing."""

from __future__ import annotations

import pytest
from async_rollout import AGENTIC, GROUPS, PUBLISH_SECONDS, age_limit, alone_seconds, run
from virtual_time import run_in_virtual_time

BETWEEN = 10.0 + PUBLISH_SECONDS
"""Seconds from the last group of a step to the next weights."""


@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("seconds", [0.0, 5.0, 100.0])
def test_groups_that_all_take_as_long_share_their_time_among_the_steps_that_they_may_last(ratio, seconds) -> None:
    durations = [seconds] * GROUPS * 200
    each_step = max(BETWEEN, (seconds + BETWEEN) / (1 + ratio))
    assert age_limit(durations, ratio, train_seconds=10.0, first_step=40) == pytest.approx(GROUPS / each_step, rel=0.02)


def test_one_slow_group_holds_its_step_up_however_fast_all_others_are() -> None:
    durations = [0.0] * GROUPS * 20
    durations[GROUPS * 15] = 1000.0
    began = 14 - 3  # steps that are published when it begins
    seconds = max(20 * BETWEEN, began * BETWEEN + 1000.0 + BETWEEN * (20 - 15)) - 8 * BETWEEN
    limit = age_limit(durations, 3, train_seconds=10.0, first_step=8)
    assert limit == pytest.approx((20 - 8) * GROUPS / seconds, rel=0.02)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ratio", [0, 2])
def test_the_real_schedulers_are_never_faster(ratio: int) -> None:
    steps = 14
    durations = [alone_seconds(AGENTIC, number, seed=3) for number in range(steps * GROUPS)]
    reached = run_in_virtual_time(run(AGENTIC, float(ratio), steps, 20.0, seed=3)).groups_per_second
    assert reached <= age_limit(durations, ratio, train_seconds=20.0)
