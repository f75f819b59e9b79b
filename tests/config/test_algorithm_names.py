"""The names that a configuration accepts are those that the algorithms register."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest
import torch

from roll.algorithms import kl
from roll.algorithms.registry import registry
from roll.config import AgenticConfig, ConfigError, load
from roll.config.algorithm import ADVANTAGE_ESTIMATORS, ALGORITHM_TYPES, GROUP_ESTIMATORS, KL_ALIASES, POLICY_LOSSES
from roll.config.presets import PRESETS
from roll.pipelines.learning.algorithm_options import estimator_keys, loss_keys


def test_every_advantage_estimator_is_registered_and_no_other() -> None:
    assert set(registry("advantage").names()) == set(ADVANTAGE_ESTIMATORS)


def test_every_policy_loss_is_registered_and_no_other() -> None:
    assert set(registry("loss").names()) == set(POLICY_LOSSES)


def test_group_estimators_are_those_that_read_groups() -> None:
    reading = {name for name in registry("advantage").names() if "group_ids" in registry("advantage").get(name).needs}
    assert reading == GROUP_ESTIMATORS


def test_estimates_of_the_divergence_have_the_same_names() -> None:
    assert dict(KL_ALIASES) == kl.KL_ALIASES
    kinds = AgenticConfig.model_fields["kl_penalty"].annotation
    assert kinds == kl.KLKind
    numbers = torch.zeros(1, 1, 3)
    for kind in (*get_args(kl.KLKind), *KL_ALIASES):
        kl.kl_penalty(numbers, numbers, kind)


def test_every_preset_is_an_algorithm_type() -> None:
    assert set(PRESETS) == set(ALGORITHM_TYPES.__args__)


def test_keys_default_to_what_the_algorithm_does_without_them() -> None:
    """So that a key that is not set may be left to the algorithm; those with a range of their own are documented."""
    defaults, compared = AgenticConfig(), 0
    for name in registry("advantage").names():
        for option, (key,) in estimator_keys(name).items():
            if (name, option) == ("step_reinforce", "gamma"):
                continue
            value = getattr(defaults, key)
            own = registry("advantage").get(name).options[option]
            assert own == ("std" if key == "norm_adv_by_std_in_grpo" else value), (name, option)
            compared += 1
    for name in set(registry("loss").names()) - {"gspo", "gspo_segment", "gmpo"}:
        for option in loss_keys(name):
            own = registry("loss").get(name).options[option]
            assert own == (None if option == "dual_clip" else defaults.pg_clip), (name, option)
            compared += 1
    assert compared > 12
    assert inspect.Parameter.empty not in registry("loss").get("gspo").options.values()


@pytest.mark.parametrize(
    ("data", "path", "fix"),
    [
        ({"reward_shift": True, "reward_scale": True}, "reward_scale", "set both to false"),
        ({"difficulty_low_threshold": 0.99}, "difficulty_high_threshold", "use 0.99 or more"),
        ({"sampler_correction": {"low": 3.0}}, "sampler_correction.high", "use 3.0 or more"),
        ({"sampler_correction": {"mode": "tiss"}}, "sampler_correction.mode", "did you mean 'tis'"),
        ({"overlong_buffer": {"lenght": 3}}, "overlong_buffer.lenght", "len"),
        ({"algorithm_type": "grop"}, "algorithm_type", "did you mean 'grpo'"),
    ],
)
def test_wrong_values_are_refused_with_the_fix(data: dict, path: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(data)
    (problem,) = caught.value.problems
    assert problem.path == path and fix in problem.fix
