"""verl: ``algorithm``: advantages, the divergence in the reward, groups, and the correction of the sampler."""

from __future__ import annotations

from typing import Any, Final

from roll.config.algorithm import ADVANTAGE_ESTIMATORS
from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, impossible, kl_kind, no_effect, plain
from roll.config.errors import FixableError

_KL_COEF: Final = 0.001
"""Weight of the divergence in the reward where `algorithm.kl_ctrl.kl_coef` is not set."""

_ESTIMATORS: Final = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
_UNKNOWN_ESTIMATORS: Final = ("optimal_token_baseline", "tir_optimal_token_baseline", "gdpo")
_COMPARING: Final = {"grpo": "reinforce", "rloo": "reinforce", "reinforce_plus_plus_baseline": "reinforce_plus_plus"}
"""Estimators that compare the members of a group, and what they are in a group of one."""

_CORRECTION: Final = "algorithm.rollout_correction"
_LEVELS: Final = ("token", "sequence", "geometric")


def _estimator(value: Any, look: Look) -> Any:
    if value in _UNKNOWN_ESTIMATORS:
        return Impossible(f"there is no estimator {value}", f"use one of {', '.join(ADVANTAGE_ESTIMATORS)}")
    if not isinstance(value, str):
        return value
    name = _ESTIMATORS.get(value, value)
    if name in _COMPARING and not look.agentic and look.responses("actor_rollout_ref.rollout.n") == 1:
        note = f"rollout.n is 1, so that {value} has nobody to compare with: what is left of it is the return"
        return Sets({"adv_estimator": _COMPARING[name]}, note=note)
    # verl whitens the advantages of this estimator always.
    return Sets({"adv_estimator": name}, {"whiten_advantages": True}) if name == "gae" else name


def _kl_in_reward(value: Any, look: Look) -> Any:
    if value is not True:
        return Unused() if value is False else value
    return Sets({"add_token_level_kl": True}, {"init_kl_coef": _KL_COEF})


def _kl_coef(value: Any, look: Look) -> Any:
    return value if look("algorithm.use_kl_in_reward") is True else Unused("algorithm.use_kl_in_reward is not true")


def _reward_kl_kind(value: Any, look: Look) -> Any:
    return kl_kind(value) if look.kl_reward else _kl_coef(kl_kind(value), look)


def _kl_type(value: Any, look: Look) -> Any:
    if value not in ("fixed", "adaptive"):
        raise FixableError("there is no such controller.", "use fixed or adaptive.")
    if value == "adaptive" and look("algorithm.kl_ctrl.target_kl") is None and look.native("target_kl") is None:
        raise FixableError("an adaptive controller needs a target.", "set algorithm.kl_ctrl.target_kl, such as 0.1.")
    return Unused()


def _if_adaptive(value: Any, look: Look) -> Any:
    adaptive = look("algorithm.kl_ctrl.type") == "adaptive"
    return value if adaptive else Unused("algorithm.kl_ctrl.type is not adaptive")


def _generation_batches(value: Any, look: Look) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        return Impossible("tries without end are not possible", "set a limit, such as 8")
    return value


def _weights(value: Any, look: Look) -> Any:
    """Convert the level of importance weights."""
    if value not in _LEVELS:
        raise FixableError("there is no such level.", f"use {', '.join(_LEVELS)}, or null.")
    return Sets({"sampler_correction.mode": "tis", "sampler_correction.level": value})


def _rejection(value: Any, look: Look) -> Any:
    """Convert the level at which samples are left out."""
    if look(f"{_CORRECTION}.rollout_is") is not None:
        return Impossible("a correction weights or masks, and this one does both", "set rollout_is or rollout_rs")
    if value not in _LEVELS:
        return Impossible("this measure of rejection is not there", f"use {', '.join(_LEVELS)}")
    return Sets({"sampler_correction.mode": "mask", "sampler_correction.level": value})


def _of_weights(value: Any, look: Look) -> Any:
    return value if look(f"{_CORRECTION}.rollout_is") is not None else Unused("rollout_is is not set")


def _of_rejection(value: Any, look: Look) -> Any:
    masks = look(f"{_CORRECTION}.rollout_rs") is not None and look(f"{_CORRECTION}.rollout_is") is None
    if not masks:
        return Unused("no samples are left out")
    return value if isinstance(value, int | float) else Impossible("a bound is one number", "write it as a number")


def _bypass(value: Any, look: Look) -> Any:
    return {True: "sampler", False: "recompute"}.get(value, value) if isinstance(value, bool) else value


def _correction_loss(value: Any, look: Look) -> Any:
    if look(f"{_CORRECTION}.bypass_mode") is not True:
        return Unused("bypass_mode is not true")
    return {"ppo_clip": "ppo", "reinforce": "vanilla"}.get(value, value) if isinstance(value, str) else value


ALGORITHM_ROWS: Final = (
    *plain("algorithm", "", gamma="gamma", lam="lambd"),
    Row("algorithm.adv_estimator", "adv_estimator", "`gae` whitens; `rloo_vectorized` is `rloo`", _estimator),
    Row(
        "algorithm.use_kl_in_reward",
        "add_token_level_kl",
        "charged at each token; with a reference if none is configured, and with 0.001 if no weight is",
        _kl_in_reward,
    ),
    Row("algorithm.kl_penalty", "kl_penalty", "where `use_kl_in_reward` is true", _reward_kl_kind),
    Row("algorithm.kl_ctrl.type", "target_kl", "`adaptive` uses `target_kl` and `horizon`, `fixed` neither", _kl_type),
    Row("algorithm.kl_ctrl.kl_coef", "init_kl_coef", "where `use_kl_in_reward` is true", _kl_coef),
    Row("algorithm.kl_ctrl.horizon", "kl_horizon", "where `type` is adaptive", _if_adaptive),
    Row("algorithm.kl_ctrl.target_kl", "target_kl", "where `type` is adaptive", _if_adaptive),
    Row("algorithm.norm_adv_by_std_in_grpo", "norm_adv_by_std_in_grpo", "false is Dr. GRPO"),
    Row("algorithm.filter_groups.enable", "dynamic_sampling.enable"),
    Row(
        "algorithm.filter_groups.max_num_gen_batches",
        "dynamic_sampling.max_batches",
        "0, without end, is refused",
        _generation_batches,
    ),
    Row(
        "algorithm.filter_groups.metric",
        note="Groups are compared by their scores.",
        only=("score", "acc", "seq_reward", "seq_final_reward"),
    ),
    Row(f"{_CORRECTION}.rollout_is", "sampler_correction.level", "with mode `tis`", _weights),
    Row(f"{_CORRECTION}.rollout_is_threshold", "sampler_correction.cap", "where `rollout_is` is set", _of_weights),
    Row(f"{_CORRECTION}.rollout_rs", "sampler_correction.level", "with mode `mask`", _rejection),
    Row(f"{_CORRECTION}.rollout_rs_threshold", "sampler_correction.high", "where `rollout_rs` is set", _of_rejection),
    Row(
        f"{_CORRECTION}.rollout_rs_threshold_lower",
        "sampler_correction.low",
        "where `rollout_rs` is set",
        _of_rejection,
    ),
    Row(f"{_CORRECTION}.bypass_mode", "old_log_probs", "true is `sampler`", _bypass),
    Row(
        f"{_CORRECTION}.loss_type",
        "policy_loss",
        "where `bypass_mode` is true; `ppo_clip` is `ppo`, `reinforce` is `vanilla`",
        _correction_loss,
    ),
    *impossible(
        "weights are not divided by their mean",
        f"{_CORRECTION}.rollout_is_batch_normalize",
        instead="leave it out; rollout_is_threshold bounds them",
    ),
    *impossible(
        "single tokens do not veto a sequence",
        f"{_CORRECTION}.rollout_token_veto_threshold",
        instead="use rollout_rs: sequence, or geometric",
    ),
    *no_effect("losses are chosen by `policy_loss`", f"{_CORRECTION}.use_policy_gradient"),
    *impossible(
        "samples are not weighted by preference feedback",
        "algorithm.use_pf_ppo",
        instead="difficulty_loss_weight weights samples by the scores of their group",
    ),
    *no_effect("only with `use_pf_ppo`, which is not there", "algorithm.pf_ppo"),
    *no_effect("estimators have their options in `advantage_options`", "algorithm._target_"),
)
"""The keys of the algorithm."""
