"""verl: ``actor_rollout_ref.actor`` (or ``actor``): losses, batches, optimiser."""

from __future__ import annotations

from typing import Any, Final

from roll.config.algorithm import POLICY_LOSSES
from roll.config.dialects.checkpoints import contents_rows
from roll.config.dialects.rows import (
    TRAIN_STRATEGIES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    choices,
    impossible,
    kl_kind,
    no_effect,
    plain,
)
from roll.config.dialects.verl.batches import dynamic_batch, mini_batches, token_budget, ulysses
from roll.config.dialects.verl.optimizer import optimizer_rows
from roll.config.dialects.verl.sections import ACTOR, per_device

_TRAIN = "actor_train.training_args"

_LOSSES = {"vanilla": "ppo", "gpg": "vanilla", "geo_mean": "gmpo"}

_OTHER_LOSSES = ("dppo_tv", "dppo_kl", "rollout_correction", "bypass_mode")

_LOSS_OPTIONS = (
    ("clip_cov", "clip_cov_ratio"),
    ("clip_cov", "clip_cov_lb"),
    ("clip_cov", "clip_cov_ub"),
    ("kl_cov", "kl_cov_ratio"),
    ("kl_cov", "ppo_kl_coef"),
)
"""Policy losses and the options that only they have, under the same names."""

_SHARDING = "sharding and memory belong to the strategy, `strategy_args.strategy_config`"


def _loss_kl_coef(value: Any, look: Look) -> Any:
    used = look(f"{ACTOR}.use_kl_loss") is True or look.kl_loss
    return value if used else Unused(f"{ACTOR}.use_kl_loss is not true")


def _loss_kl_kind(value: Any, look: Look) -> Any:
    return _loss_kl_coef(kl_kind(value), look)


def _loss_option(mode: str) -> Any:
    """Convert an option that only the policy loss ``mode`` has."""

    def convert(value: Any, look: Look) -> Any:
        key = f"{ACTOR}.policy_loss.loss_mode"
        chosen = look(key, look.native("policy_loss") or "vanilla")
        return value if chosen == mode else Unused(f"{key} is not {mode}")

    return convert


def _loss_mode(value: Any, look: Look) -> Any:
    if value in _OTHER_LOSSES:
        return Impossible(f"there is no loss {value}", f"use one of {', '.join(POLICY_LOSSES)}")
    return _LOSSES.get(value, value) if isinstance(value, str) else value


def _sampler_cap(value: Any, look: Look) -> Any:
    off = isinstance(value, int | float) and value <= 0
    return Unused() if off else Sets({"sampler_correction.mode": "tis", "sampler_correction.cap": value})


POLICY_ROWS: Final = (
    *optimizer_rows(f"{ACTOR}.optim", _TRAIN),
    *plain(
        ACTOR,
        "",
        grad_clip="max_grad_norm",
        clip_ratio="pg_clip",
        clip_ratio_low="pg_clip_low",
        clip_ratio_high="pg_clip_high",
        clip_ratio_c="dual_clip_loss",
        entropy_coeff="entropy_loss_coef",
        use_kl_loss="use_kl_loss",
        ppo_epochs="ppo_epochs",
        loss_agg_mode="loss_agg_mode",
    ),
    Row(f"{ACTOR}.kl_loss_coef", "kl_loss_coef", "where `use_kl_loss` is true", _loss_kl_coef),
    Row(f"{ACTOR}.kl_loss_type", "kl_penalty", "where `use_kl_loss` is true", _loss_kl_kind),
    Row(
        f"{ACTOR}.policy_loss.loss_mode",
        "policy_loss",
        "`vanilla` is `ppo`, `gpg` is `vanilla`, `geo_mean` is `gmpo`",
        _loss_mode,
    ),
    *(
        Row(
            f"{ACTOR}.tau_{short}",
            f"policy_loss_options.tau_{full}",
            "where `loss_mode` is `sapo`",
            _loss_option("sapo"),
        )
        for short, full in (("pos", "positive"), ("neg", "negative"))
    ),
    *(
        Row(
            f"{ACTOR}.policy_loss.{option}",
            f"policy_loss_options.{option}",
            f"where `loss_mode` is `{mode}`",
            _loss_option(mode),
        )
        for mode, option in _LOSS_OPTIONS
    ),
    Row(f"{ACTOR}.tis_imp_ratio_cap", "sampler_correction.cap", "with mode `tis`; -1 is off", _sampler_cap),
    Row(
        f"{ACTOR}.ppo_mini_batch_size",
        "mini_batches",
        "`data.train_batch_size` divided by it; both count prompts",
        mini_batches,
    ),
    Row(f"{ACTOR}.ppo_micro_batch_size", f"{_TRAIN}.per_device_train_batch_size", "over all devices", per_device),
    Row(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{_TRAIN}.per_device_train_batch_size"),
    Row(
        f"{ACTOR}.use_dynamic_bsz",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "16384 where `ppo_max_token_len_per_gpu` is not set",
        dynamic_batch(ACTOR, _TRAIN, 16384),
    ),
    Row(
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        token_budget(ACTOR),
    ),
    Row(
        f"{ACTOR}.strategy",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `fsdp2`: `fsdp_train`; `megatron`: `megatron_train`",
        choices(TRAIN_STRATEGIES),
    ),
    Row(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "actor_train.strategy_args.strategy_config.ulysses_size",
        "of FSDP",
        ulysses("actor_train"),
    ),
    *plain(ACTOR, "actor_train", log_prob_micro_batch_size_per_gpu="infer_batch_size"),
    *impossible(
        "the routes of experts are not recorded and replayed",
        f"{ACTOR}.router_replay.mode",
        instead="use sampler_correction against the mismatch that different routes make",
    ),
    *no_effect(
        "only with a mode of router_replay",
        f"{ACTOR}.router_replay.record_file",
        f"{ACTOR}.router_replay.replay_file",
    ),
    *impossible(
        "there is no estimator that needs the sum of squared probabilities",
        f"{ACTOR}.calculate_sum_pi_squared",
        f"{ACTOR}.sum_pi_squared_checkpointing",
        instead="use adv_estimator: rloo or opo",
    ),
    *no_effect("the entropy is always a metric", f"{ACTOR}.calculate_entropy"),
    *no_effect("the model is that of the role", f"{ACTOR}.use_fused_kernels", f"{ACTOR}.tokenizer_path"),
    Row(f"{ACTOR}.use_remove_padding", "actor_train.use_remove_padding"),
    *no_effect(
        "a matter of speed and memory that this version decides itself",
        f"{ACTOR}.use_torch_compile",
        f"{ACTOR}.entropy_from_logits_with_chunking",
        f"{ACTOR}.entropy_checkpointing",
        f"{ACTOR}.use_prefix_grouper",
    ),
    *no_effect(
        "mini-batches are drawn anew in each epoch, from `seed`", f"{ACTOR}.shuffle", f"{ACTOR}.data_loader_seed"
    ),
    *contents_rows(f"{ACTOR}.checkpoint"),
    Row(f"{ACTOR}.load_weight", note="Weights are those of model.path.", only=(True,), agrees="pretrain"),
    Row(f"{ACTOR}.freeze_vision_tower", note="All of a policy is trained.", only=(False,), agrees="pretrain"),
    Row(f"{ACTOR}.loss_scale_factor", note="Losses divide by the counts of a batch.", only=(None,)),
    *no_effect("losses divide by the counts of the whole batch", f"{ACTOR}.fix_actor_microbatch_loss_scale"),
    *no_effect("actor_rollout_ref.rollout.n says it", f"{ACTOR}.rollout_n"),
)
"""The keys of the policy that is trained."""
