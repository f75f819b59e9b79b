"""ROLL's keys of the algorithm: normalisation, importance sampling, corrections, and the actor's losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, impossible, no_effect

_LEVELS: Final = {"token": "token", "segment": "segment", "sequence": "sequence", "geometric": "geometric"}
_GROUPINGS: Final = {"group": "state", "batch": "batch", "tag": "inductive"}


def _none(value: Any, look: Look) -> Any:
    """Read the word None, which YAML takes for text, as unset."""
    return Unused("the text None is no normalisation") if value in ("None", "none", "null") else value


def _mean_of(value: Any, look: Look) -> Any:
    """Say the normalisation of scores by whose mean is subtracted."""
    if value in ("None", "none"):
        return Unused("the text None is no normalisation")
    std = look("norm_std_type")
    values = {"reward_norm": value}
    if std in (None, "None", "none"):
        values["reward_shift"] = True
    return Sets(values)


def _std_of(value: Any, look: Look) -> Any:
    if value in ("None", "none"):
        return Unused("the text None is no normalisation")
    mean = look("norm_mean_type")
    if mean in (None, "None", "none"):
        return Sets({"reward_norm": value, "reward_scale": True})
    if mean != value:
        return Impossible(
            f"the mean is that of the {mean} and the deviation that of the {value}",
            f"reward_norm: {mean} takes both of the {mean}",
        )
    return Sets({"reward_norm": value})


def _episode_mean_of(value: Any, look: Look) -> Any:
    std, grouping = look("reward_normalization.norm_std_type"), look.native("reward_normalization.grouping")
    if grouping not in (None, "batch") and value == "batch":
        return Impossible("the mean is that of the grouping", "reward_normalization.grouping: batch")
    method = look.native("reward_normalization.method") or ("mean" if std in (None, "None") else "mean_std")
    grouping = grouping or (_GROUPINGS.get(value, value) if isinstance(value, str) else value)
    return Sets({"reward_normalization.grouping": grouping, "reward_normalization.method": method})


def _episode_std_of(value: Any, look: Look) -> Any:
    mean = look("reward_normalization.norm_mean_type")
    if mean != value:
        return Impossible(
            f"the mean is that of the {mean} and the deviation that of the {value}",
            "reward_normalization takes both of the same grouping",
        )
    return Sets({"reward_normalization.method": look.native("reward_normalization.method") or "mean_std"})


def _level(value: Any, look: Look) -> Any:
    if value == "seq":
        return "gspo"
    return Unused("ratios are of tokens without it") if value == "token" else value


def _old_log_probs(value: Any, look: Look) -> Any:
    return {True: "recompute", False: "sampler"}.get(value, value) if isinstance(value, bool) else value


def _correction(value: Any, look: Look) -> Any:
    """Read the weights and the filters against the mismatch of sampler and trainer: one of them is here."""
    if not isinstance(value, Mapping):
        return Impossible("it is no section")
    weight = value.get("is_weight")
    filters = [each for each in value.get("filters") or () if isinstance(each, Mapping) and each.get("enabled", True)]
    ratios = [each for each in filters if each.get("ratio_enabled", True)]
    if isinstance(weight, Mapping) and weight.get("enabled"):
        kind = weight.get("weight_type", "token")
        values = {"mode": "tis", "level": _LEVELS.get(kind, kind), "cap": weight.get("upper_bound")}
        note = "filters beside weights are left out" if filters else ""
    elif ratios:
        first = ratios[0]
        kind = first.get("agg_type", "token")
        values = {
            "mode": "mask",
            "level": _LEVELS.get(kind, kind),
            "low": first.get("ratio_low"),
            "high": first.get("ratio_high"),
        }
        differences = any(each.get("diff_enabled") for each in filters)
        note = "filters by the difference of probabilities are left out" if differences else ""
        if len(ratios) > 1:
            note = "the first filter acts, and no other"
    else:
        return Unused("nothing in it is enabled")
    said = {f"sampler_correction.{key}": item for key, item in values.items() if item is not None}
    return Sets(said, note=note)


def _ratio(value: Any, look: Look) -> Any:
    return "tis" if value is True else Unused("it is off, as it is here")


def _tapered(value: Any, look: Look) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == 0:
        return Unused("it is off")
    return Sets({"use_topr_loss": True}, note="right and wrong answers have the weight 1 each")


def _loss_weight(value: Any, look: Look) -> Any:
    tapered = look.native("use_topr_neg_loss_coef") or look("use_topr_neg_loss_coef")
    return Unused("use_topr_loss is the policy loss") if value == 0 and tapered else value


def _off(reason: str, instead: str = "", *, off: tuple[Any, ...] = (False, 0, 0.0)) -> Any:
    def convert(value: Any, look: Look) -> Any:
        return Unused("it is off, as it is here") if value in off else Impossible(reason, instead)

    return convert


ALGORITHM: Final[tuple[Row, ...]] = (
    Row("reward_norm", "reward_norm", "the text `None` is null", _none),
    Row("norm_mean_type", "reward_norm", "with `reward_shift` where there is no `norm_std_type`", _mean_of),
    Row("norm_std_type", "reward_norm", "with `reward_scale` where there is no `norm_mean_type`", _std_of),
    Row("reward_normalization.norm_mean_type", "reward_normalization.grouping", "and `method`", _episode_mean_of),
    Row("reward_normalization.norm_std_type", "reward_normalization.method", "", _episode_std_of),
    Row("importance_sampling", "policy_loss", "`seq` is `gspo`", _level),
    Row("pg_variant", "policy_loss"),
    Row("actor_train.pg_variant", "policy_loss"),
    Row("enable_old_logprobs_recompute", "old_log_probs", "false is `sampler`", _old_log_probs),
    Row("train_infer_correction", "sampler_correction", "its weights, or its first filter", _correction),
    Row(
        "use_rollout_importance_sampling_ratio",
        "sampler_correction.mode",
        "true is `tis`",
        _ratio,
    ),
    Row("rollout_importance_sampling_ratio_upper_bound", "sampler_correction.cap"),
    Row("use_topr_neg_loss_coef", "use_topr_loss", "", _tapered),
    *(Row(key, "use_topr_loss", "", _tapered) for key in ("positive_loss_coef", "postive_loss_coef")),
    Row("rl_loss_coef", "rl_loss_coef", "0 beside the tapered loss, which is the policy loss here", _loss_weight),
    Row("use_additional_prompts", "is_use_additional_prompts"),
    Row("max_additional_prompts", "max_additional_running_prompts"),
    Row("user_prompt_batch_size", "rollout_batch_size"),
    Row(
        "error_max_len_clip",
        (),
        "max_len_mask leaves responses at the limit out of the loss",
        _off("scores of responses at the limit are not replaced", "max_len_mask, or overlong_buffer"),
    ),
    Row(
        "episode_reward_weight",
        (),
        "only 1",
        _off("the episode's term has the weight 1", "step_reward_weight", off=(1, 1.0)),
    ),
    Row(
        "use_turn_scores",
        (),
        "rewards stand at their turns with gae and agentic_reinforce",
        _off("turn scores are kept by the estimator", "adv_estimator: agentic_reinforce", off=(False,)),
    ),
    *no_effect("a batch may have any number of samples, so none is copied or left out", "batch_adjust_mode"),
    *no_effect("only what the policy sampled is ever trained on", "enable_response_mask"),
    *no_effect("the reference section says whether there is a reference", "enable_reference"),
    *no_effect(
        "it says how samples wait for each other, and the scheduler fills engines by itself",
        "user_defined_rollout_loop",
        "alive_check_interval",
        "rollout_batch_wait",
    ),
    *impossible(
        "a policy is not trained for preferences here while it samples", "use_dpo_loss", instead="pipeline: dpo"
    ),
)
