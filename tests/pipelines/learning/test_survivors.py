"""A group that lost members: what the others learn is what a smaller group would have learned, whoever was lost."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from roll.config import AgenticConfig
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.trajectories.batch import collate
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.samples import samples_from

CHANCE = 0.3
"""With which the policy says "right"."""


def member(number: int, right: bool, lost: bool) -> Trajectory:
    turn = Turn([1, 2], [5], [-0.5], reward=float(right))
    status = Status.ERROR_UNAVAILABLE if lost else Status.COMPLETED
    return Trajectory("A", "g", number, 1, turns=[turn], status=status, score=None if lost else float(right))


def gradient(config: AgenticConfig, outcomes: tuple[bool, ...], lost: tuple[int, ...]) -> float:
    """The mean over survivors of advantage times the derivative of the log-probability by the policy's logit."""
    group = [member(number, right, number in lost) for number, right in enumerate(outcomes)]
    sound = [each for each in group if not each.status.is_error]
    samples = [sample for each in sound for sample in samples_from(each, "trajectory")]
    batch = collate(samples, 0)
    batch["old_log_probs"] = torch.full(batch["response_mask"].shape, -0.5) * batch["response_mask"]
    assign_credit(batch, samples, [each.score or 0.0 for each in sound], config, CreditState.from_config(config))
    advantages = (batch["advantages"] * batch["response_mask"]).sum(1).tolist()
    slopes = [1 - CHANCE if each.score else -CHANCE for each in sound]
    return sum(a * s for a, s in zip(advantages, slopes, strict=True)) / len(sound)


def expected(config: AgenticConfig, size: int, lost: tuple[int, ...]) -> float:
    """The expectation of :func:`gradient` over all that the members may do, exactly."""
    total = 0.0
    for outcomes in product((False, True), repeat=size):
        weight = 1.0
        for right in outcomes:
            weight *= CHANCE if right else 1 - CHANCE
        total += weight * gradient(config, outcomes, lost)
    return total


@pytest.mark.filterwarnings("ignore::roll.algorithms.groups.AlgorithmWarning")
@pytest.mark.parametrize("estimator", ["rloo", "reinforce", "grpo"])
def test_whoever_is_lost_the_others_follow_the_true_gradient(estimator: str) -> None:
    """d success / d logit is p (1 - p); a baseline that includes oneself shrinks it by the share of the others."""
    grouped = {"grouping": "state", "method": "mean"} if estimator == "reinforce" else {}
    config = AgenticConfig(adv_estimator=estimator, reward_normalization=grouped, whiten_advantages=False)
    true = CHANCE * (1 - CHANCE)
    for losses in (1, 2):
        smaller = expected(config, 4 - losses, ())
        for lost in combinations(range(4), losses):
            found = expected(config, 4, lost)
            assert found == pytest.approx(smaller, abs=1e-6), "as in a group that never had the lost ones"
            if estimator != "grpo":  # which divides by the deviation of the group
                left = 4 - losses
                assert found == pytest.approx(true * (1 if estimator == "rloo" else (left - 1) / left), abs=1e-6)
