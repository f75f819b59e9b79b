"""Ten differences that somebody made between two configurations: each is named, with the stage where it shows first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.config.loading import load
from roll.differences import compare_runs, comparing
from roll.differences.recording import Recording, record
from tests.rings import exhaustive_but

pytestmark = pytest.mark.long

BASE: dict[str, Any] = {
    "adv_estimator": "grpo",
    "mini_batches": 2,
    "num_return_sequences_in_group": 8,
    "rollout_batch_size": 16,
    "reference": {},
    "actor_train.training_args.learning_rate": 3e-4,
}

PLANTED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "ddof": ({"advantage_options": {"ddof": 0}}, ["advantage_options.ddof"], "advantages"),
    "deviation": ({"norm_adv_by_std_in_grpo": False}, ["norm_adv_by_std_in_grpo"], "advantages"),
    "clamp": ({"advantage_clip": 0.3}, ["advantage_clip"], "advantages"),
    "clip": ({"pg_clip": 0.01}, ["pg_clip"], "loss"),
    "mask": ({"max_len_mask": True}, ["max_len_mask"], "advantages"),
    "aggregation": ({"loss_agg_mode": "seq-mean-token-sum"}, ["loss_agg_mode"], "loss"),
    "KL in the reward": (
        {"add_token_level_kl": True, "init_kl_coef": 0.3},
        ["init_kl_coef", "add_token_level_kl"],
        "log-probs",
    ),
    "KL in the loss": ({"use_kl_loss": True, "kl_loss_coef": 0.3}, ["use_kl_loss", "kl_loss_coef"], "log-probs"),
    "temperature": (
        {"actor_infer.generating_args.temperature": 0.7},
        ["actor_infer.generating_args.temperature"],
        "samples",
    ),
    "learning rate": (
        {"actor_train.training_args.learning_rate": 1e-3},
        ["actor_train.training_args.learning_rate"],
        "weights",
    ),
    "estimator": ({"adv_estimator": "reinforce"}, ["adv_estimator"], "advantages"),
    "entropy": ({"entropy_loss_coef": 0.1}, ["entropy_loss_coef"], "loss"),
}


def job(**changes: Any) -> RLVRConfig:
    base = {**BASE, "actor_train.data_args.file_name": ["examples/data/arithmetic_train.jsonl"]}
    rewards = {"rewards": {"math_rule": {"verifiers": {"math": 1.0}}}}
    return load({}, kind=RLVRConfig, overrides={**base, **rewards, **changes})


# What is behind nothing: other names of the run, other machines, other sizes of passes.
HARMLESS = {"exp_name": "another", "actor_train.training_args.per_device_train_batch_size": 2, "logging_steps": 5}


@pytest.fixture(autouse=True, scope="module")
def each_job_is_run_once() -> Iterator[None]:
    """All tests compare with the same job: what was recorded of it is that of the next test too."""
    known: dict[str, Recording] = {}

    def recorded(config: RLConfig) -> Recording:
        job = repr(config.model_dump(exclude={"output_dir"})).replace(str(config.output_dir), "")
        if job not in known:
            known[job] = record(config)
        return known[job]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "record", recorded)
        yield


@pytest.mark.parametrize("name", exhaustive_but(PLANTED, "clamp"))
def test_a_planted_difference_is_named(name: str) -> None:
    changes, keys, stage = PLANTED[name]
    found = compare_runs(job(), job(**HARMLESS, **changes))
    assert {key for cause in found.causes for key in cause.keys} | set(found.silent) == set(keys)
    assert found.causes[0].difference.stage == stage
    # Where the divergence is charged makes no difference to grpo, which adds up what a response earns.
    assert set(found.silent) <= {"add_token_level_kl"}


def test_equal_algorithms_are_equal_bit_for_bit() -> None:
    found = compare_runs(job(), job(**HARMLESS))
    assert found.causes == ()


@pytest.mark.exhaustive
def test_several_differences_are_told_apart_in_the_order_in_which_they_show() -> None:
    planted = {"loss_agg_mode": "seq-mean-token-sum", "advantage_clip": 0.3, "entropy_loss_coef": 0.0}
    found = compare_runs(job(), job(**planted))
    assert [list(cause.keys) for cause in found.causes] == [["advantage_clip"], ["loss_agg_mode"]]


@pytest.mark.exhaustive
def test_a_difference_of_runs_with_environments_is_named_too() -> None:
    def games(**changes: Any) -> AgenticConfig:
        return load("sokoban", kind=AgenticConfig, overrides={"adv_estimator": "grpo", **changes})

    found = compare_runs(games(), games(advantage_clip=0.05, exp_name="another"))
    assert [list(cause.keys) for cause in found.causes] == [["advantage_clip"]]
    assert found.causes[0].difference.stage == "advantages"
