"""MindSpeed-RL: ``rl_config``, the algorithm, what grades and what the run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.placement import Placement
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    above_zero,
    agreeing,
    choices,
    kl_kind,
    no_effect,
    plain,
    share,
    whole,
)
from roll.config.errors import FixableError

_RL = "rl_config"
_MEGATRON = "megatron_training"
_ACTOR = "actor_config"
_TRAIN = "actor_train.training_args"

_ESTIMATORS = {"group_norm": "grpo"}

_VERIFIERS = {"acc_for_dapo": "math", "acc_for_ppo": "math", "math_verify_reward": "math", "math_17k_acc": "math"}
"""Graders of the guide that have another name here."""

_MACHINE: Final = 8

_DEVICES = "devices belong to the role, `device_mapping`"


def _in_reward(look: Look) -> bool:
    """Tell where the divergence goes: into the loss (GRPO), or into the reward (PPO, and whatever adapts it)."""
    asked = look(f"{_RL}.use_kl_in_reward")
    if isinstance(asked, bool):
        return asked
    return look(f"{_RL}.adv_estimator") == "gae" or look(f"{_RL}.kl_ctrl_type") == "adaptive"


def _kl_coef(value: Any, look: Look) -> Sets:
    if _in_reward(look):
        return Sets({"init_kl_coef": value, "add_token_level_kl": True})
    return Sets({"kl_loss_coef": value} if value == 0 else {"use_kl_loss": True, "kl_loss_coef": value})


def _kl_type(value: Any, look: Look) -> Any:
    if value not in ("fixed", "adaptive"):
        raise FixableError("there is no such controller.", "use fixed or adaptive.")
    if value == "fixed":
        return Unused()
    if look(f"{_RL}.kl_target") is None and look.native("target_kl") is None:
        raise FixableError("an adaptive controller needs a target.", f"set {_RL}.kl_target, such as 0.1.")
    if look(f"{_RL}.init_kl_coef") is None and look.native("init_kl_coef") is None:
        raise FixableError("an adaptive controller needs a weight to begin with.", f"set {_RL}.init_kl_coef.")
    if look(f"{_RL}.adv_estimator") == "gae":
        return Unused()
    return Sets(note="only the divergence in the reward has an adaptive weight here, so it moves there from the loss")


def _if_adaptive(value: Any, look: Look) -> Any:
    adaptive = look(f"{_RL}.kl_ctrl_type") == "adaptive"
    return value if adaptive else Unused("rl_config.kl_ctrl_type is not adaptive")


def _mini_batches(value: Any, look: Look) -> int:
    return share(look.prompts(f"{_MEGATRON}.global_batch_size", f"{_RL}.n_samples_per_prompt"), value, "prompts")


def _if(switch: str) -> Any:
    """Convert a value that counts where the switch of the guide's section is on."""

    def convert(value: Any, look: Look) -> Any:
        return value if look(f"{_RL}.{switch}") is True else Unused(f"{_RL}.{switch} is not true")

    return convert


def _tries(value: Any, look: Look) -> Any:
    if look(f"{_RL}.filter_groups_enable") is not True:
        return Unused(f"{_RL}.filter_groups_enable is not true")
    endless = isinstance(value, int) and value < 1
    return Impossible("tries without end", "set dynamic_sampling.max_batches") if endless else value


def _kept_prompts(value: Any, look: Look) -> Any:
    if look(f"{_RL}.filter_groups_enable") is not True:
        return Unused(f"{_RL}.filter_groups_enable is not true")
    if value == look(f"{_MEGATRON}.global_batch_size"):
        return Unused()
    return Impossible("a step trains on as many prompts as it samples", "set rollout_batch_size to it")


def _aggregation(value: Any, look: Look) -> Any:
    return {True: "token-mean", False: "seq-mean-token-mean"}.get(value, value) if isinstance(value, bool) else value


def _packing(value: Any, look: Look) -> Any:
    budgets = ("max_packing_token_size", "update_max_packing_token_size", "actor_max_packing_token_size")
    if value is True and all(look(f"{_RL}.{name}") is None for name in budgets):
        return Impossible("batches by length need a token budget", f"set {_RL}.max_packing_token_size")
    return Unused()


def _update_budget(value: Any, look: Look) -> Any:
    if look(f"{_RL}.use_dynamic_bsz") is not True:
        return Unused(f"{_RL}.use_dynamic_bsz is not true")
    return value


def _common_budget(value: Any, look: Look) -> Any:
    if look(f"{_RL}.update_max_packing_token_size") is not None:
        return Unused(f"{_RL}.update_max_packing_token_size goes before it")
    return _update_budget(value, look)


def _verifiers(value: Any, look: Look) -> Any:
    names = value if isinstance(value, list) else [value]
    named = [_VERIFIERS.get(name, name) if isinstance(name, str) else name for name in names]
    return _of_domain("verifier_function")(named, look)


def _devices(value: Any, look: Look) -> Sets:
    count = whole(value, "the number")
    # The guide counts all devices; machines for training have eight of them.
    machines = (count // _MACHINE, _MACHINE) if count % _MACHINE == 0 else (1, count)
    placement = Placement(*machines)
    roles = ["actor_train", "actor_infer"]
    if look(f"{_RL}.adv_estimator") == "gae" and look(f"{_RL}.critic_resource.num_npus") in (None, value):
        roles.append("critic")
    if above_zero(look(f"{_RL}.init_kl_coef")):
        roles.append("reference")
    return placement.together(*roles)


def _same_devices(value: Any, look: Look) -> Any:
    if look(f"{_RL}.use_integrated_worker") is True or value == look(f"{_RL}.actor_resource.num_npus"):
        return Unused("it takes turns with the policy on the same devices")
    return Impossible("roles on devices of their own are not counted here", "set device_mapping of the role")


def _blocking(value: Any, look: Look) -> Any:
    if value is True:
        return 0.0
    return Impossible("only a synchronous run is told by this key", "set async_generation_ratio: 1 to overlap")


def _integrated(value: Any, look: Look) -> Any:
    if value is True:
        return Unused()
    return Impossible("roles on devices of their own are not counted here", "set device_mapping of the role")


def _reference_used(value: Any, look: Look) -> Any:
    used = above_zero(look(f"{_RL}.init_kl_coef")) or look.kl_loss or look.kl_reward
    return value if used else Unused("no term uses the reference")


def _of_domain(name: str) -> Any:
    def convert(value: Any, look: Look) -> Sets | Unused:
        if look.agentic and not look.native("rewards"):
            return Unused("environments grade their own episodes")
        domains = look.native("rewards") or {"all": {}}
        if not isinstance(domains, Mapping) or len(domains) > 1:
            raise FixableError(
                "rewards: has several domains, and this key does not say which.", f"write {name} in each."
            )
        # The guide knows one way to grade; a domain of one name takes every row without a tag.
        return Sets({f"rewards.{next(iter(domains))}.{name}": value})

    return convert


def _tracker(name: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        # The guide: where both are asked for, only wandb is used.
        other = name == "tensorboard" and look(f"{_RL}.use_wandb") is True
        return name if value is True and not other else Unused("rl_config.use_wandb goes before it" if other else "")

    return convert


_ALGORITHM = (
    *plain(
        _RL,
        "",
        gamma="gamma",
        lam="lambd",
        clip_ratio="pg_clip",
        entropy_coeff="entropy_loss_coef",
        epochs="ppo_epochs",
        advantage_whiten="whiten_advantages",
        max_prompt_length="prompt_length",
    ),
    Row(f"{_RL}.adv_estimator", "adv_estimator", "`group_norm` is `grpo`", choices(_ESTIMATORS)),
    Row(
        f"{_RL}.kl_penalty",
        "kl_penalty",
        "the estimate of the divergence; the guide's descriptions of this key and of `kl_ctrl_type` are exchanged",
        lambda value, look: kl_kind(value),
    ),
    Row(
        f"{_RL}.kl_ctrl_type",
        "target_kl",
        "`fixed`, or `adaptive` with `kl_target` and `kl_horizon`, for the divergence in the reward",
        _kl_type,
    ),
    Row(
        f"{_RL}.init_kl_coef",
        ("kl_loss_coef", "use_kl_loss"),
        "with `adv_estimator: gae` or an adaptive controller: `init_kl_coef`; with a reference",
        _kl_coef,
    ),
    Row(f"{_RL}.kl_target", "target_kl", "where `kl_ctrl_type` is adaptive", _if_adaptive),
    Row(f"{_RL}.kl_horizon", "kl_horizon", "where `kl_ctrl_type` is adaptive", _if_adaptive),
    Row(
        f"{_RL}.mini_batch_size",
        "mini_batches",
        "`megatron_training.global_batch_size` divided by it; both count prompts",
        _mini_batches,
    ),
    Row(f"{_RL}.n_samples_per_prompt", "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    Row(f"{_RL}.actor_forward_micro_batch_size", "actor_train.infer_batch_size"),
    Row(
        f"{_RL}.ref_forward_micro_batch_size",
        "reference.infer_batch_size",
        "where `init_kl_coef` is above 0",
        _reference_used,
    ),
    Row(f"{_RL}.update_micro_batch_size", f"{_TRAIN}.per_device_train_batch_size"),
    *no_effect("a divergence is charged where `init_kl_coef` says", f"{_RL}.use_kl_in_reward"),
    Row(f"{_RL}.clip_higher_enable", ("pg_clip_low", "pg_clip_high"), "", lambda value, look: Unused()),
    Row(f"{_RL}.clip_ratio_low", "pg_clip_low", "where `clip_higher_enable` is true", _if("clip_higher_enable")),
    Row(f"{_RL}.clip_ratio_high", "pg_clip_high", "where `clip_higher_enable` is true", _if("clip_higher_enable")),
    Row(f"{_RL}.cliprange_value", "value_clip"),
    Row(f"{_RL}.token_level_loss", "loss_agg_mode", "true is `token-mean`, false `seq-mean-token-mean`", _aggregation),
    Row(f"{_RL}.overlong_buffer_enable", "overlong_buffer.enable"),
    Row(f"{_RL}.overlong_buffer", "overlong_buffer.len"),
    Row(f"{_RL}.overlong_buffer_penalty_factor", "overlong_buffer.penalty_factor"),
    Row(f"{_RL}.rollout_max_tokens", "response_length"),
    Row(f"{_RL}.filter_groups_enable", "dynamic_sampling.enable"),
    Row(f"{_RL}.filter_groups_max_batches", "dynamic_sampling.max_batches", "below 1, without end, is refused", _tries),
    Row(f"{_RL}.filter_groups_train_batch_size", "rollout_batch_size", "the prompts of a step", _kept_prompts),
    agreeing(
        f"{_RL}.filter_groups_metric",
        "dynamic_sampling",
        "groups are compared by their scores",
        lambda value, look: look(f"{_RL}.filter_groups_enable") is True and [value] == look(f"{_RL}.verifier_function"),
    ),
    Row(f"{_RL}.use_remove_padding", "actor_train.use_sequence_packing"),
    Row(f"{_RL}.use_dynamic_bsz", f"{_TRAIN}.max_tokens_per_microbatch", "needs a token budget", _packing),
    Row(
        f"{_RL}.update_max_packing_token_size",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _update_budget,
    ),
    Row(
        f"{_RL}.max_packing_token_size",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _common_budget,
    ),
    *no_effect(
        "scoring has the budget of training",
        f"{_RL}.actor_max_packing_token_size",
        f"{_RL}.ref_max_packing_token_size",
        f"{_RL}.critic_max_packing_token_size",
    ),
    *no_effect(
        "a step hands its whole batch from role to role",
        *(
            f"{_RL}.{name}_dispatch_size"
            for name in (
                "actor_logprob",
                "actor_update",
                "adv",
                "actor_rollout",
                "ref",
                "reward",
                "critic_update",
                "critic_value",
                "kl",
            )
        ),
        f"{_RL}.experience_count",
    ),
    *no_effect("which rank computes a sample changes no number", f"{_RL}.use_dp_batch_balance"),
    *no_effect("policy and reference are roles of their own", f"{_RL}.share_backbone"),
    *no_effect("the transport between processes is Ray's", f"{_RL}.zmq_communication"),
)

_REWARDS = (
    *(
        Row(f"{_RL}.{name}", f"rewards.<domain>.{name}", "the only domain, or `all`", _of_domain(name))
        for name in ("verifier_weight", "verifier_parallel", "verifier_timeout")
    ),
    Row(
        f"{_RL}.verifier_function",
        "rewards.<domain>.verifier_function",
        "`acc_for_dapo`, `acc_for_ppo`, `math_verify_reward`, `math_17k_acc`: `math`; the only domain, or `all`",
        _verifiers,
    ),
    Row(
        f"{_RL}.rule_reward",
        note="Reward models are a role: write reward: and reward_pretrain:.",
        only=(True,),
        agrees="rewards",
    ),
)

_RUN = (
    Row(f"{_RL}.use_tensorboard", "track_with", "true is `tensorboard`", _tracker("tensorboard")),
    Row(f"{_RL}.use_wandb", "track_with", "true is `wandb`", _tracker("wandb")),
    *no_effect(
        "mini-batches are drawn anew in each epoch, from `seed`",
        f"{_RL}.shuffle_mini_batch",
        f"{_RL}.shuffle_minibatch",
    ),
    *no_effect("every sample keeps its place", f"{_RL}.guarantee_order"),
    *no_effect(
        _DEVICES,
        *(
            f"{_RL}.{name}"
            for name in (
                "num_cpus_for_local_task",
                "num_cpus_for_placement_group",
            )
        ),
    ),
    Row(
        f"{_RL}.actor_resource.num_npus",
        ("device_mapping", "num_gpus_per_node"),
        "machines of eight devices; policy, sampler and reference take turns on all",
        _devices,
    ),
    *(
        Row(f"{_RL}.{name}_resource.num_npus", (), "where it is the number of the actor", _same_devices)
        for name in ("reference", "reward", "critic")
    ),
    *no_effect(_DEVICES, f"{_RL}.actor_resource.num_cpus", f"{_RL}.reward_resource.num_cpus"),
    Row(
        f"{_RL}.blocking",
        "async_generation_ratio",
        "true means synchronous, although the guide says the opposite",
        _blocking,
    ),
    Row(
        f"{_RL}.use_integrated_worker",
        ("actor_train.device_mapping", "actor_infer.device_mapping"),
        "roles take turns on all devices",
        _integrated,
    ),
    *no_effect("throughput is measured per step", f"{_RL}.log_max_throughput"),
)

RL_ROWS: Final = (*_ALGORITHM, *_REWARDS, *_RUN)
"""The keys of the algorithm."""
