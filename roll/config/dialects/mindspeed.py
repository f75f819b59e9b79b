"""MindSpeed-RL: ``rl_config``, ``megatron_training``, ``actor_config``, ``generate_config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import (
    Guide,
    Look,
    Row,
    Sets,
    Unused,
    above_zero,
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
_GENERATE = "generate_config"
_TRAIN = "actor_train.training_args"
_SAMPLING = "actor_infer.generating_args"

_ESTIMATORS = {"group_norm": "grpo"}

_DEVICES = "devices belong to the role, `device_mapping`"
_ENGINE = "options of Megatron go to `actor_train.strategy_args.strategy_config`"
_SAMPLER = "options of an engine go to `actor_infer.strategy_args.strategy_config`"
_SAVING = "a checkpoint is always whole, and a resumed run takes all of it"


def _in_reward(look: Look) -> bool:
    """Tell where the divergence goes: into the loss (GRPO), or into the reward (PPO, and whatever adapts it)."""
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


def _rollout_batch(value: Any, look: Look) -> int:
    prompts = whole(value, "the batch size")
    return prompts * look.responses(f"{_RL}.n_samples_per_prompt") if look.agentic else prompts


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


def _model_option(name: str) -> Row:
    target = f"{_SAMPLING}.{name}" if name != "max_tokens" else f"{_SAMPLING}.max_new_tokens"
    return Row(f"{_GENERATE}.{name}", target)


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
)

_REWARDS = (
    *(
        Row(f"{_RL}.{name}", f"rewards.<domain>.{name}", "the only domain, or `all`", _of_domain(name))
        for name in ("verifier_function", "verifier_weight", "verifier_parallel", "verifier_timeout")
    ),
    Row(f"{_RL}.rule_reward", note="Reward models are a role: write reward: and reward_pretrain:.", only=(True,)),
)

_RUN = (
    Row(f"{_RL}.use_tensorboard", "track_with", "true is `tensorboard`", _tracker("tensorboard")),
    Row(f"{_RL}.use_wandb", "track_with", "true is `wandb`", _tracker("wandb")),
    *no_effect(
        "options of a tracker go to `tracker_kwargs`",
        *(f"{_RL}.wandb_{name}" for name in ("project", "exp_name", "save_dir")),
    ),
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
                "use_integrated_worker",
                "num_cpus_for_local_task",
                "num_cpus_for_placement_group",
                "actor_resource",
                "reference_resource",
                "reward_resource",
            )
        ),
    ),
    Row(
        f"{_RL}.blocking",
        note="It means synchronous, although the guide says the opposite. To overlap, set async_generation_ratio: 1.",
        only=(True,),
    ),
    *no_effect("throughput is measured per step", f"{_RL}.log_max_throughput"),
)

_TRAINING = (
    Row(
        f"{_MEGATRON}.global_batch_size",
        "rollout_batch_size",
        "agentic: times the responses per prompt",
        _rollout_batch,
    ),
    Row(f"{_MEGATRON}.data_path", "actor_train.data_args.file_name"),
    Row(f"{_MEGATRON}.seq_length", "sequence_length"),
    Row(f"{_MEGATRON}.train_iters", "max_steps"),
    Row(f"{_MEGATRON}.save_interval", "save_steps"),
    Row(f"{_MEGATRON}.seed", "seed"),
    Row(f"{_MEGATRON}.stage", note="PPO is adv_estimator: gae, GRPO is adv_estimator: grpo.", only=("ray_grpo",)),
    Row(f"{_MEGATRON}.bf16", "actor_train.model_args.dtype", "true is `bf16`", choices({True: "bf16", False: "fp32"})),
    *no_effect("the tokenizer is the model's", f"{_MEGATRON}.tokenizer_name_or_path", f"{_MEGATRON}.tokenizer_type"),
    *no_effect(
        _ENGINE,
        *(
            f"{_MEGATRON}.{name}"
            for name in (
                "model",
                "recompute_granularity",
                "recompute_num_layers",
                "recompute_method",
                "use_fused_rmsnorm",
                "use_mcore_models",
                "sequence_parallel",
                "use_flash_attn",
                "no_masked_softmax_fusion",
                "attention_softmax_in_fp32",
                "no_gradient_accumulation_fusion",
                "use_fused_swiglu",
                "use_fused_rotary_pos_emb",
                "use_distributed_optimizer",
                "attention_dropout",
                "hidden_dropout",
                "init_method_std",
                "distributed_backend",
                "no_shared_storage",
            )
        ),
    ),
    *plain(
        _ACTOR,
        _TRAIN,
        micro_batch_size="per_device_train_batch_size",
        lr="learning_rate",
        weight_decay="weight_decay",
        lr_warmup_fraction="warmup_ratio",
        adam_beta1="adam_beta1",
        adam_beta2="adam_beta2",
    ),
    Row(
        f"{_ACTOR}.lr_decay_style",
        f"{_TRAIN}.lr_scheduler_type",
        "`constant` is `constant_with_warmup`",
        choices({"constant": "constant_with_warmup"}),
    ),
    Row(f"{_ACTOR}.min_lr", note="Schedules end at 0 here.", only=(0, 0.0)),
    Row(f"{_ACTOR}.clip_grad", "max_grad_norm"),
    Row(f"{_ACTOR}.load", "pretrain", "a model in the Hugging Face format"),
    Row(f"{_ACTOR}.save", "checkpoint_config.output_dir"),
    *no_effect(
        f"{_SAVING} (`no_…: true` leaves a part out, although the guide says the opposite)",
        *(f"{_ACTOR}.{name}" for name in ("no_load_optim", "no_load_rng", "no_save_optim", "no_save_rng", "finetune")),
    ),
    *no_effect(
        _ENGINE,
        *(f"{_ACTOR}.{name}" for name in ("model", "tensor_model_parallel_size", "pipeline_model_parallel_size")),
    ),
)

_SAMPLING_ROWS = (
    *(_model_option(name) for name in ("max_tokens", "top_p", "top_k", "temperature")),
    *(
        Row(f"{_GENERATE}.sampling_config.{name}", _model_option(name).native)
        for name in ("max_tokens", "top_p", "top_k", "temperature")
    ),
    *(
        row
        for section in (_GENERATE, f"{_GENERATE}.sampling_config")
        for row in (
            Row(f"{section}.min_p", note="Use top_p.", only=(0, 0.0)),
            *no_effect("log-probs of the sampler are always kept", f"{section}.logprobs"),
            *no_effect("responses are always turned into text", f"{section}.detokenize"),
        )
    ),
    Row(f"{_GENERATE}.max_num_seqs", "max_running_requests"),
    Row(f"{_GENERATE}.max_model_len", "sequence_length"),
    *no_effect(
        _SAMPLER,
        *(
            f"{_GENERATE}.{name}"
            for name in (
                "infer_tensor_parallel_size",
                "infer_pipeline_parallel_size",
                "infer_expert_parallel_size",
                "trust_remote_code",
                "offload_train_optimizer",
                "offload_train_grad",
                "offload_train_param",
                "max_num_batched_tokens",
                "enforce_eager",
                "torchair_graph",
                "enable_expert_parallel",
                "dtype",
                "gpu_memory_utilization",
                "num_scheduler_steps",
            )
        ),
    ),
)

MINDSPEED: Final = Guide("MindSpeed-RL", (*_ALGORITHM, *_REWARDS, *_RUN, *_TRAINING, *_SAMPLING_ROWS))
"""The GRPO parameters of MindSpeed-RL."""
