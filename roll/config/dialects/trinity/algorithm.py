"""Trinity-RFT: ``algorithm``: its type, advantages, losses, divergences and optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import (
    SCHEDULES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    choices,
    impossible,
    kl_kind,
    plain,
)
from roll.config.dialects.trinity.sections import ALGO, DISTILLING, TRAIN, compares_pairs, distils
from roll.config.dialects.verl.algorithm import ALGORITHM_ROWS as VERL_ROWS
from roll.config.errors import FixableError, choose_from
from roll.config.presets import PRESETS

_ALGO: Final = ALGO
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "grpo_verl": {"adv_estimator": "grpo", "policy_loss": "ppo"},
    "dapo": {"adv_estimator": "grpo", "policy_loss": "ppo"},
    "rloo": {"adv_estimator": "rloo", "policy_loss": "ppo"},
    "reinforceplusplus": {"adv_estimator": "reinforce_plus_plus", "policy_loss": "ppo"},
    "multi_step_grpo": {"adv_estimator": "step_wise_grpo", "policy_loss": "ppo"},
    "gigpo": {"adv_estimator": "gigpo", "policy_loss": "ppo"},
    "gspo": {"adv_estimator": "grpo", "policy_loss": "gspo"},
    "cispo": {"adv_estimator": "grpo", "policy_loss": "cispo"},
    "sapo": {"adv_estimator": "grpo", "policy_loss": "sapo"},
    "topr": {"adv_estimator": "reinforce", "policy_loss": "topr"},
    "raft": {"adv_estimator": "reinforce", "policy_loss": "vanilla"},
    "tis": {"adv_estimator": "grpo", "policy_loss": "tis"},
}
"""Types that are no presets here, and what they fill."""

_ESTIMATORS: Final = {
    "ppo": "gae",
    "reinforceplusplus": "reinforce_plus_plus",
    "grpo_verl": "grpo",
    "opmd_verl": "opmd",
    "asymre_verl": "asymre",
}
_LOSSES: Final = {"mix_chord": "chord", "importance_sampling": "tis"}
_OWN_ESTIMATORS: Final = ("clipb", "clipv", "cod", "m2po")
_OWN_LOSSES: Final = ("m2po", "sft_is", "sft_phi")

_IGNORED_ADVANTAGE: Final = ("std_cal_level", "std_threshold", "enable_step_norm", "std_normalize", "rank_penalty")
"""Arguments of estimators of which ours have no counterpart."""

_IGNORED_LOSS: Final = (
    "use_dynamic_bsz",
    "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu",
    "ngpus_trainer",
    "train_batch_size_expert",
    "train_batch_size_usual",
    "sft_loss_agg_mode",
    "grpo_loss_agg_mode",
    "fallback_to_policy_gradient",
)
"""Arguments of losses that say what batches are, which here the run knows."""


def _type(value: Any, look: Look) -> Any:
    if not isinstance(value, str):
        return value
    if value in DISTILLING:
        if not distils(look):
            return Impossible("teachers score samples in a pipeline of their own", "pipeline: distill")
        return Sets(fills={"divergence": "jsd" if value == "jsd" else "reverse_kl", "loss_agg_mode": "token-mean"})
    if value in ("sft", "dpo") and not look.kind_has("algorithm_type"):
        return Unused()
    if value in PRESETS:
        return value
    if value not in _TYPES:
        raise FixableError("no algorithm has this name.", choose_from(value, [*PRESETS, *_TYPES, *DISTILLING]))
    note = "answers weigh as their score says" if value == "raft" else ""
    return Sets(fills={**_TYPES[value], "loss_agg_mode": "token-mean"}, note=note)


def _estimator(value: Any, look: Look) -> Any:
    if value in DISTILLING:
        return Unused()
    if value in _OWN_ESTIMATORS:
        return Impossible(f"there is no estimator {value}", "use grpo, with policy_loss: clip_cov against lost entropy")
    return _ESTIMATORS.get(value, value) if isinstance(value, str) else value


def _loss(value: Any, look: Look) -> Any:
    if value in _OWN_LOSSES:
        return Impossible(f"there is no loss {value}", "use chord, or ppo")
    if value == "dpo" and compares_pairs(look):
        return Unused()
    return _LOSSES.get(value, value) if isinstance(value, str) else value


def _kl_loss(value: Any, look: Look) -> Any:
    if compares_pairs(look) or distils(look):
        return Unused("the loss of this pipeline compares with the reference itself")
    if value == "none":
        return Sets({"use_kl_loss": False})
    corrected = {"use_bias_correction_kl": True} if value == "corrected_k3" else {}
    kind = "low_var_kl" if corrected else kl_kind(value)
    return Sets({"use_kl_loss": True, "kl_penalty": kind, **corrected}, {"kl_loss_coef": 0.001})


def _kl_loss_args(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping) or set(value) - {"kl_coef"}:
        raise FixableError("only kl_coef has a meaning for the loss.", "write {kl_coef: 0.001}.")
    if not value:
        return Unused("it is empty")
    coefficient = value["kl_coef"]
    if compares_pairs(look):
        return Sets({"beta": coefficient})
    if distils(look):
        return Unused("nothing but the teachers is compared with")
    if look(f"{_ALGO}.kl_loss_fn") == "none":
        return Unused("kl_loss_fn is none")
    named = look(f"{_ALGO}.kl_loss_fn") is not None or look.kl_loss
    if named or coefficient == 0:
        return Sets({"kl_loss_coef": coefficient})
    # The guide's algorithms have k2 where no other estimate is named.
    return Sets({"kl_loss_coef": coefficient, "use_kl_loss": True}, {"kl_penalty": "mse"})


def _kl_reward(value: Any, look: Look) -> Any:
    if value == "none":
        return Sets({"init_kl_coef": 0.0})
    return Sets({"kl_penalty": kl_kind(value), "add_token_level_kl": True}, {"init_kl_coef": 0.001})


def _kl_reward_args(value: Any, look: Look) -> Any:
    names = {"kl_coef": "init_kl_coef", "target_kl": "target_kl", "horizon": "kl_horizon"}
    if not isinstance(value, Mapping) or set(value) - {*names, "adaptive"}:
        raise FixableError("a key of it has no meaning here.", "use kl_coef, adaptive, target_kl, horizon.")
    if look(f"{_ALGO}.kl_penalty_fn") in (None, "none"):
        return Unused("kl_penalty_fn is not set")
    if value.get("adaptive") and value.get("target_kl") is None:
        raise FixableError("an adaptive controller needs a target.", "add target_kl: 0.1.")
    used = ("kl_coef", "target_kl", "horizon") if value.get("adaptive") else ("kl_coef",)
    return Sets({names[key]: value[key] for key in used if value.get(key) is not None})


def _entropy(value: Any, look: Look) -> Any:
    if value == "none":
        return Sets({"entropy_loss_coef": 0.0})
    if value not in ("default", "mix"):
        raise FixableError("there is no such entropy loss.", "use default or none.")
    return Unused()


def _entropy_args(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping) or set(value) - {"entropy_coef"}:
        raise FixableError("only entropy_coef has a meaning here.", "write {entropy_coef: 0.001}.")
    return Sets({"entropy_loss_coef": value["entropy_coef"]} if value else {})


def _advantage_args(value: Any, look: Look) -> Any:
    names = {"gamma": "gamma", "lam": "lambd"}
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {gamma: 1.0, lam: 0.95}.")
    if distils(look):
        beta = value.get("lambda_coef")
        return Sets({"divergence_beta": beta} if look(f"{_ALGO}.algorithm_type") == "jsd" and beta is not None else {})
    words = {"epsilon": "eps", "omega": "step_reward_weight"}
    asked = look(f"{_ALGO}.advantage_fn")
    # What is null there is not asked for.
    own = {key: item for key, item in value.items() if key not in names and item is not None}
    if "std_normalize" in own and "rec" in (asked, look(f"{_ALGO}.algorithm_type")):
        own["scale"] = "std" if own.pop("std_normalize") else "none"
    given = {} if asked in _OWN_ESTIMATORS else own
    options = {
        f"advantage_options.{words.get(key, key)}": item for key, item in given.items() if key not in _IGNORED_ADVANTAGE
    }
    left = ", ".join(key for key in own if key in _IGNORED_ADVANTAGE)
    said = {names[key]: item for key, item in value.items() if key in names}
    return Sets(said | options, note=f"estimators have no {left}, so it is left out" if left else "")


def _loss_args(value: Any, look: Look) -> Any:
    names = {
        "clip_range": "pg_clip",
        "clip_range_low": "pg_clip_low",
        "clip_range_high": "pg_clip_high",
        "loss_agg_mode": "loss_agg_mode",
    }
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {clip_range: 0.2}.")
    own = {key: item for key, item in value.items() if key not in names and key not in _IGNORED_LOSS}
    zero = look(f"{_ALGO}.algorithm_type") == "opmd" and own.get("tau") == 0
    options = {f"policy_loss_options.{key}": item for key, item in own.items() if not (zero and key == "tau")}
    note = "a tau of 0 has no limit here, so that of the loss stays" if zero else ""
    said = {names[key]: item for key, item in value.items() if key in names} | options
    if value.get("clip_mode") == "gspo-one-side":
        said["loss_agg_mode"] = "seq-mean-token-mean"
    return Sets(said, note=note)


def _strategy(value: Any, look: Look) -> Any:
    if value in ("default", "warmup"):
        return Unused()
    if value == "mix":
        return Unused("" if look.has("buffer.trainer_input.auxiliary_buffers") else "there is no buffer of experts")
    if value == "staleness_control":
        return Impossible("samples are not left out for their age while they wait", "experience.max_age")
    raise FixableError("there is no such strategy.", "use default, warmup or mix.")


def _expert_share(value: Any, look: Look) -> Any:
    has_experts = look.has("buffer.trainer_input.auxiliary_buffers")
    return Sets({"expert.expert_data_ratio": value}) if has_experts else Unused("there is no buffer of experts")


def _betas(value: Any, look: Look) -> Sets:
    if not isinstance(value, list) or len(value) != 2:
        raise FixableError("AdamW has two betas.", "write a list of two numbers, such as [0.9, 0.999].")
    return Sets({f"{TRAIN}.adam_beta1": value[0], f"{TRAIN}.adam_beta2": value[1]})


def _bypassed(value: Any, look: Look) -> Any:
    return {True: "sampler", False: "recompute"}.get(value, value) if isinstance(value, bool) else value


def _per_token(value: Any, look: Look) -> Any:
    return "token-mean" if value is True else Unused("the loss of samples has its own aggregation")


ALGORITHM_ROWS: Final = (
    Row(
        f"{_ALGO}.algorithm_type",
        "algorithm_type",
        "fills what is unset, and never changes what is set; other types fill estimator, loss and aggregation",
        _type,
        agrees="pipeline",
    ),
    Row(f"{_ALGO}.repeat_times", "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    Row(
        f"{_ALGO}.advantage_fn",
        "adv_estimator",
        "`ppo` is `gae`, with a critic; `reinforceplusplus` is `reinforce_plus_plus`",
        _estimator,
        agrees="divergence",
    ),
    Row(
        f"{_ALGO}.advantage_fn_args",
        ("gamma", "lambd", "advantage_options"),
        "`gamma`, `lam`; others are options of the estimator (`std_normalize` of `rec` is `scale`)",
        _advantage_args,
    ),
    Row(f"{_ALGO}.policy_loss_fn", "policy_loss", "`mix_chord` is `chord`", _loss, agrees="loss_type"),
    Row(
        f"{_ALGO}.policy_loss_fn_args",
        ("pg_clip", "pg_clip_low", "pg_clip_high", "loss_agg_mode", "policy_loss_options"),
        "`clip_range`, `clip_range_low`, `clip_range_high`; others are options of the loss",
        _loss_args,
    ),
    Row(
        f"{_ALGO}.kl_loss_fn",
        ("use_kl_loss", "kl_penalty", "use_bias_correction_kl"),
        "with a reference, and with weight 0.001 unless it is set; `none` is off",
        _kl_loss,
    ),
    Row(f"{_ALGO}.kl_loss_fn_args", "kl_loss_coef", "`kl_coef`", _kl_loss_args),
    Row(
        f"{_ALGO}.kl_penalty_fn",
        ("kl_penalty", "add_token_level_kl"),
        "with a reference, and with `init_kl_coef: 0.001` unless it is set; `none` is off",
        _kl_reward,
    ),
    Row(
        f"{_ALGO}.kl_penalty_fn_args",
        ("init_kl_coef", "target_kl", "kl_horizon"),
        "`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`",
        _kl_reward_args,
    ),
    Row(f"{_ALGO}.entropy_loss_fn", "entropy_loss_coef", "`none` is 0", _entropy),
    Row(f"{_ALGO}.entropy_loss_fn_args", "entropy_loss_coef", "`entropy_coef`", _entropy_args),
    Row(f"{_ALGO}.loss_agg_mode", "loss_agg_mode"),
    Row(
        f"{_ALGO}.sample_strategy",
        note="`default`, `warmup`, or `mix` with experts",
        convert=_strategy,
        agrees="expert",
    ),
    Row(f"{_ALGO}.sample_strategy_args.expert_data_ratio", "expert.expert_data_ratio", "with experts", _expert_share),
    *impossible(
        "samples are not left out for their age while they wait",
        f"{_ALGO}.sample_strategy_args.max_staleness",
        instead="experience.max_age",
    ),
    *(row for row in VERL_ROWS if row.key.startswith(f"{_ALGO}.rollout_correction.")),
    Row(f"{_ALGO}.bypass_old_logprobs", "old_log_probs", "true is `sampler`", _bypassed),
    *impossible(
        "the routes of experts are not recorded and replayed",
        f"{_ALGO}.enable_router_replay",
        instead="use sampler_correction against the mismatch that different routes make",
    ),
    Row(f"{_ALGO}.use_token_level_loss", "loss_agg_mode", "true is `token-mean`", _per_token),
    *plain(
        f"{_ALGO}.optimizer",
        TRAIN,
        lr="learning_rate",
        weight_decay="weight_decay",
        lr_warmup_steps_ratio="warmup_ratio",
        min_lr_ratio="min_lr_ratio",
    ),
    Row(
        f"{_ALGO}.optimizer.lr_warmup_steps",
        f"{TRAIN}.warmup_steps",
        "below 0 leaves it to the ratio",
        lambda value, look: Unused() if isinstance(value, int) and value < 0 else value,
    ),
    Row(f"{_ALGO}.optimizer.clip_grad", "max_grad_norm"),
    Row(f"{_ALGO}.optimizer.betas", (f"{TRAIN}.adam_beta1", f"{TRAIN}.adam_beta2"), "", _betas),
    agreeing(
        f"{_ALGO}.optimizer.optimizer_type",
        f"{TRAIN}.adam_beta1",
        "the optimiser is AdamW",
        lambda value, look: value in ("adam", "adamw"),
    ),
    Row(
        f"{_ALGO}.optimizer.lr_scheduler_type",
        f"{TRAIN}.lr_scheduler_type",
        "`constant` is `constant_with_warmup`",
        choices(SCHEDULES),
    ),
    Row(
        f"{_ALGO}.optimizer.warmup_style",
        f"{TRAIN}.lr_scheduler_type",
        "`constant` is `constant_with_warmup`",
        choices(SCHEDULES),
    ),
)
"""The keys of the algorithm."""
