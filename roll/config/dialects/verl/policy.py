"""verl: ``algorithm``, ``actor_rollout_ref.actor`` (or ``actor``) and ``critic``."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import (
    SCHEDULES,
    TRAIN_STRATEGIES,
    Look,
    Row,
    Sets,
    Unused,
    choices,
    kl_kind,
    negated,
    no_effect,
    plain,
    same_as,
    share,
)
from roll.config.errors import FixableError

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_TRAIN = "actor_train.training_args"

_LOSSES = {"vanilla": "ppo", "gpg": "vanilla", "geo_mean": "gmpo"}

_LOSS_OPTIONS = (
    ("clip_cov", "clip_cov_ratio"),
    ("clip_cov", "clip_cov_lb"),
    ("clip_cov", "clip_cov_ub"),
    ("kl_cov", "kl_cov_ratio"),
    ("kl_cov", "ppo_kl_coef"),
)
"""Policy losses and the options that only they have, under the same names."""

_SHARDING = "sharding and memory belong to the strategy, `strategy_args.strategy_config`"


def _kl_in_reward(value: Any, look: Look) -> Any:
    if value is False:
        return Unused()
    if look("algorithm.kl_ctrl.kl_coef") is None and look.native("init_kl_coef") is None:
        raise FixableError(
            "the divergence in the reward has no weight.", "set algorithm.kl_ctrl.kl_coef, such as 0.001."
        )
    return Sets({"add_token_level_kl": value})


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


def _loss_kl_coef(value: Any, look: Look) -> Any:
    used = look(f"{_ACTOR}.use_kl_loss") is True or look.kl_loss
    return value if used else Unused(f"{_ACTOR}.use_kl_loss is not true")


def _loss_kl_kind(value: Any, look: Look) -> Any:
    return _loss_kl_coef(kl_kind(value), look)


def _loss_option(mode: str) -> Any:
    """Convert an option that only the policy loss ``mode`` has."""

    def convert(value: Any, look: Look) -> Any:
        key = f"{_ACTOR}.policy_loss.loss_mode"
        chosen = look(key, look.native("policy_loss") or "vanilla")
        return value if chosen == mode else Unused(f"{key} is not {mode}")

    return convert


def _token_budget(role: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        return value if look(f"{role}.use_dynamic_bsz") is True else Unused(f"{role}.use_dynamic_bsz is not true")

    return convert


def _dynamic_batch(role: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if value is True and look(f"{role}.ppo_max_token_len_per_gpu") is None:
            raise FixableError("batches by length need a token budget.", f"set {role}.ppo_max_token_len_per_gpu.")
        return Unused()

    return convert


def _mini_batches(value: Any, look: Look) -> int:
    return share(look.prompts("data.train_batch_size", f"{_ROLLOUT}.n"), value, "prompts")


def _warmup_steps(value: Any, look: Look) -> Any:
    return Unused() if isinstance(value, int) and value < 0 else value


def _sampler_cap(value: Any, look: Look) -> Any:
    off = isinstance(value, int | float) and value <= 0
    return Unused() if off else Sets({"sampler_correction.mode": "tis", "sampler_correction.cap": value})


def _generation_batches(value: Any, look: Look) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise FixableError("tries without end are not possible here.", "set a limit, such as 8.")
    return value


_ALGORITHM = (
    *plain("algorithm", "", gamma="gamma", lam="lambd", adv_estimator="adv_estimator"),
    Row(
        "algorithm.use_kl_in_reward",
        "add_token_level_kl",
        "charged at each token; with a reference if none is configured",
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
)

_POLICY = (
    *plain(
        _ACTOR,
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
    Row(f"{_ACTOR}.kl_loss_coef", "kl_loss_coef", "where `use_kl_loss` is true", _loss_kl_coef),
    Row(f"{_ACTOR}.kl_loss_type", "kl_penalty", "where `use_kl_loss` is true", _loss_kl_kind),
    Row(
        f"{_ACTOR}.policy_loss.loss_mode",
        "policy_loss",
        "`vanilla` is `ppo`, `gpg` is `vanilla`, `geo_mean` is `gmpo`",
        choices(_LOSSES),
    ),
    *(
        Row(
            f"{_ACTOR}.policy_loss.{option}",
            f"policy_loss_options.{option}",
            f"where `loss_mode` is `{mode}`",
            _loss_option(mode),
        )
        for mode, option in _LOSS_OPTIONS
    ),
    Row(f"{_ACTOR}.tis_imp_ratio_cap", "sampler_correction.cap", "with mode `tis`; -1 is off", _sampler_cap),
    Row(
        f"{_ACTOR}.ppo_mini_batch_size",
        "mini_batches",
        "`data.train_batch_size` divided by it; both count prompts",
        _mini_batches,
    ),
    Row(f"{_ACTOR}.ppo_micro_batch_size", note="Use ppo_micro_batch_size_per_gpu.", only=(None,)),
    Row(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", f"{_TRAIN}.per_device_train_batch_size"),
    Row(
        f"{_ACTOR}.use_dynamic_bsz",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "needs `ppo_max_token_len_per_gpu`",
        _dynamic_batch(_ACTOR),
    ),
    Row(
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        f"{_TRAIN}.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _token_budget(_ACTOR),
    ),
    Row(
        f"{_ACTOR}.strategy",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `fsdp2`: `fsdp_train`; `megatron`: `megatron_train`",
        choices(TRAIN_STRATEGIES),
    ),
    *no_effect(_SHARDING, f"{_ACTOR}.fsdp_config", f"{_ACTOR}.ulysses_sequence_parallel_size"),
    *no_effect(
        "a matter of speed and memory that this version decides itself",
        f"{_ACTOR}.use_torch_compile",
        f"{_ACTOR}.entropy_from_logits_with_chunking",
        f"{_ACTOR}.entropy_checkpointing",
    ),
    *no_effect(
        "mini-batches are drawn anew in each epoch, from `seed`", f"{_ACTOR}.shuffle", f"{_ACTOR}.data_loader_seed"
    ),
    *no_effect("a checkpoint is always whole", f"{_ACTOR}.checkpoint"),
)


def _optimizer(section: str, target: str) -> tuple[Row, ...]:
    """Return the rows of an ``optim`` section."""
    return (
        *plain(
            section,
            target,
            lr="learning_rate",
            weight_decay="weight_decay",
            lr_warmup_steps_ratio="warmup_ratio",
        ),
        Row(f"{section}.lr_warmup_steps", f"{target}.warmup_steps", "below 0 leaves it to the ratio", _warmup_steps),
        Row(
            f"{section}.warmup_style",
            f"{target}.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices(SCHEDULES),
        ),
        Row(f"{section}.min_lr_ratio", f"{target}.min_lr_ratio", "null is 0", lambda value, look: value or 0.0),
        *no_effect("the run lasts `max_steps`", f"{section}.total_training_steps"),
    )


_CRITIC = (
    *plain("critic", "", cliprange_value="value_clip"),
    Row(
        "critic.grad_clip",
        "max_grad_norm",
        "one limit for actor and critic",
        same_as(f"{_ACTOR}.grad_clip", "max_grad_norm", 1.0),
    ),
    Row("critic.ppo_epochs", "ppo_epochs", "one number for both", same_as(f"{_ACTOR}.ppo_epochs", "ppo_epochs", 1)),
    Row("critic.ppo_mini_batch_size", "mini_batches", "as the actor's", _mini_batches),
    Row("critic.ppo_micro_batch_size", note="Use ppo_micro_batch_size_per_gpu.", only=(None,)),
    Row("critic.ppo_micro_batch_size_per_gpu", "critic.training_args.per_device_train_batch_size"),
    Row("critic.forward_micro_batch_size_per_gpu", "critic.infer_batch_size"),
    Row(
        "critic.use_dynamic_bsz",
        "critic.training_args.max_tokens_per_microbatch",
        "needs `ppo_max_token_len_per_gpu`",
        _dynamic_batch("critic"),
    ),
    Row(
        "critic.ppo_max_token_len_per_gpu",
        "critic.training_args.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        _token_budget("critic"),
    ),
    Row("critic.strategy", "critic.strategy_args.strategy_name", "as the actor's", choices(TRAIN_STRATEGIES)),
    *_optimizer("critic.optim", "critic.training_args"),
    Row("critic.model.path", "critic.model_args.model_name_or_path"),
    Row(
        "critic.model.enable_gradient_checkpointing",
        "critic.model_args.disable_gradient_checkpointing",
        "turned around",
        negated,
    ),
    *no_effect(_SHARDING, "critic.model.fsdp_config", "critic.ulysses_sequence_parallel_size"),
    *no_effect("batches are scored by `infer_batch_size`", "critic.forward_max_token_len_per_gpu"),
    *no_effect("a critic has the tokenizer of its policy", "critic.model.tokenizer_path", "critic.model.external_lib"),
    Row("critic.model.override_config", note="Change the model's own config.json.", only=(None, {})),
    *no_effect("padding is removed by the strategy", "critic.model.use_remove_padding"),
    *no_effect("mini-batches are drawn anew in each epoch, from `seed`", "critic.shuffle"),
)


POLICY_ROWS: Final = (*_ALGORITHM, *_POLICY, *_optimizer(f"{_ACTOR}.optim", _TRAIN), *_CRITIC)
"""The keys of the algorithm, of the policy that is trained and of the critic."""
