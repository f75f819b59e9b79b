"""verl: ``critic``."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.rows import (
    TRAIN_STRATEGIES,
    Row,
    choices,
    dropped_if,
    negated,
    no_effect,
    own_code_row,
    plain,
    same_as,
    under,
)
from roll.config.dialects.verl.batches import dynamic_batch, mini_batches, token_budget, ulysses
from roll.config.dialects.verl.optimizer import optimizer_rows
from roll.config.dialects.verl.sections import ACTOR, per_device

CRITIC_ROWS: Final = (
    *plain("critic", "", cliprange_value="value_clip"),
    Row(
        "critic.grad_clip",
        "max_grad_norm",
        "one limit for actor and critic",
        same_as(f"{ACTOR}.grad_clip", "max_grad_norm", 1.0),
    ),
    Row("critic.ppo_epochs", "ppo_epochs", "one number for both", same_as(f"{ACTOR}.ppo_epochs", "ppo_epochs", 1)),
    Row("critic.ppo_mini_batch_size", "mini_batches", "as the actor's", mini_batches),
    Row(
        "critic.ppo_micro_batch_size",
        "critic.training_args.per_device_train_batch_size",
        "over all devices",
        per_device,
    ),
    Row("critic.ppo_micro_batch_size_per_gpu", "critic.training_args.per_device_train_batch_size"),
    Row("critic.forward_micro_batch_size_per_gpu", "critic.infer_batch_size"),
    Row(
        "critic.use_dynamic_bsz",
        "critic.training_args.max_tokens_per_microbatch",
        "32768 where `ppo_max_token_len_per_gpu` is not set",
        dynamic_batch("critic", "critic.training_args", 32768),
    ),
    Row(
        "critic.ppo_max_token_len_per_gpu",
        "critic.training_args.max_tokens_per_microbatch",
        "where `use_dynamic_bsz` is true",
        token_budget("critic"),
    ),
    Row("critic.strategy", "critic.strategy_args.strategy_name", "as the actor's", choices(TRAIN_STRATEGIES)),
    *optimizer_rows("critic.optim", "critic.training_args"),
    Row("critic.model.path", "critic.model_args.model_name_or_path"),
    Row(
        "critic.model.enable_gradient_checkpointing",
        "critic.model_args.disable_gradient_checkpointing",
        "turned around",
        negated,
    ),
    Row(
        "critic.ulysses_sequence_parallel_size",
        "critic.strategy_args.strategy_config.ulysses_size",
        "of FSDP",
        ulysses("critic"),
    ),
    Row("critic.forward_micro_batch_size", "critic.infer_batch_size", "over all devices", per_device),
    *plain("critic", "", loss_agg_mode="loss_agg_mode"),
    *no_effect("a critic has as many responses as the policy", "critic.rollout_n", "critic.enable"),
    *no_effect("a checkpoint is always whole", "critic.checkpoint"),
    *no_effect("no profile is written of single steps", "critic.profiler", "critic.nccl_timeout"),
    Row("critic.model.lora_rank", "critic.model_args.lora_rank", "0 is off", dropped_if((0,))),
    Row("critic.model.lora_alpha", "critic.model_args.lora_alpha"),
    Row(
        "critic.model.target_modules",
        "critic.model_args.lora_target",
        "`all-linear` is the default",
        dropped_if(("all-linear",)),
    ),
    own_code_row("critic.model.trust_remote_code"),
    *no_effect("weights are read where they lie", "critic.model.use_shm"),
    *no_effect("activations are computed again instead", "critic.model.enable_activation_offload"),
    *no_effect("batches are scored by `infer_batch_size`", "critic.forward_max_token_len_per_gpu"),
    *no_effect("a critic has the tokenizer of its policy", "critic.model.tokenizer_path", "critic.model.external_lib"),
    Row("critic.model.override_config", note="Change the model's own config.json.", only=(None, {})),
    Row("critic.model.use_remove_padding", "critic.use_remove_padding"),
    *no_effect("mini-batches are drawn anew in each epoch, from `seed`", "critic.shuffle", "critic.data_loader_seed"),
    Row("critic.load_weight", note="A critic begins with the weights of its model.", only=(True,), agrees="critic"),
    Row("critic.model.lora.rank", "critic.model_args.lora_rank", "0 is off", dropped_if((0,))),
    Row("critic.model.lora.alpha", "critic.model_args.lora_alpha"),
    Row("critic.model.lora.target_modules", "critic.model_args.lora_target", "a list of modules"),
    *no_effect(
        "adapters begin and are placed as the trainer does it",
        *under(
            "critic.model.lora",
            *("type", "dropout", "exclude_modules", "dropout_position", "lora_A_init_method", "lora_B_init_method"),
            *("a2a_experimental", "dtype", "adapter_path", "freeze_vision_model", "freeze_vision_projection"),
            "freeze_language_model",
        ),
    ),
    *no_effect("kernels are the strategy's", "critic.model.tiled_mlp"),
    *no_effect("the shape of a model is its config.json's", "critic.model.rope_scaling", "critic.model.rope_theta"),
    *no_effect("no profile is written of single steps", "critic.profile", "critic.ray_namespace"),
)
"""The keys of the critic."""
