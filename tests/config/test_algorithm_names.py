"""The names that a configuration accepts are those that the algorithms register."""

from __future__ import annotations

from roll.algorithms.registry import registry
from roll.config.algorithm import ADVANTAGE_ESTIMATORS, POLICY_LOSSES


def test_every_advantage_estimator_is_registered_and_no_other() -> None:
    assert set(registry("advantage").names()) == set(ADVANTAGE_ESTIMATORS)


def test_every_policy_loss_is_registered_and_no_other() -> None:
    assert set(registry("loss").names()) == set(POLICY_LOSSES)
