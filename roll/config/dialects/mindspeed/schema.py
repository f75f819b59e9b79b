"""MindSpeed-RL: keys of its own classes of configuration that its guide does not print."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    above_zero,
    agreeing,
    impossible,
    no_effect,
    under,
    unless,
)

_MEGATRON: Final = "megatron_training"
_RL: Final = "rl_config"
_GENERATE: Final = "generate_config"
_SECTIONS: Final = (_MEGATRON, "actor_config", "critic_config", "ref_config", "reward_config")
_OPTIONS: Final = "actor_train.strategy_args.strategy_config"
_TRAINER: Final = {"actor_train.strategy_args.strategy_name": "megatron_train"}

_ARCHITECTURE: Final = (
    *("spec", "use_rotary_position_embeddings", "max_position_embeddings", "original_max_position_embeddings"),
    *("rope_scaling_type", "rope_scaling_factor", "rope_scaling_mscale", "rope_scaling_mscale_all_dim"),
    *("rope_scaling_original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "group_query_attention"),
    *("num_query_groups", "untie_embeddings_and_output_weights", "multi_latent_attention", "qk_pos_emb_head_dim"),
    *("qk_head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim", "qk_layernorm", "seq_aux", "first_k_dense_replace"),
    *("moe_layer_freq", "moe_router_topk", "num_experts", "n_shared_experts", "moe_ffn_hidden_size"),
    *("moe_router_num_groups", "moe_router_group_topk", "moe_router_topk_scaling_factor", "norm_topk_prob"),
    *("moe_router_score_function", "moe_router_enable_expert_bias", "moe_router_load_balancing_type"),
    *("make_vocab_size_divisible_by", "padded_vocab_size", "vocab_extra_ids", "add_qkv_bias", "disable_bias_linear"),
    *("position_embedding_type", "rotary_base", "normalization", "norm_epsilon", "swiglu", "attention_bias"),
)
"""Sizes and parts of a model."""

_KERNELS: Final = (
    *("use_fused_moe_token_permute_and_unpermute", "no_bias_dropout_fusion", "use_cp_send_recv_overlap"),
    *("use_fused_ring_attention_update", "gemm_gradient_accumulation_fusion", "reuse_fp32_param", "npu_deterministic"),
    *("transformer_impl", "use_tp_pp_dp_mapping", "pad_to_multiple_of", "coc_mode", "log_throughput"),
)

_OTHER_PROGRAMS: Final = (
    *("is_instruction_dataset", "is_pairwise_dataset", "dataloader_type", "num_workers", "eval_iters", "skip_train"),
    *("do_sample", "use_kv_cache", "dpo_loss_type", "ref_model", "refer_model_iter", "pretrained_checkpoint"),
    *(
        "reset_position_ids",
        "tokenizer_padding_side",
        "tokenizer_not_use_fast",
        "algorithm",
        "ai_framework",
        "mm_model",
    ),
    *("initial_loss_scale", "load_checkpoint_loosely", "enable_high_availability", "no_check_for_nan_in_loss_and_grad"),
)

_TOOLS: Final = "tools are called by the environment problems of the agentic pipeline, and by tools: of rlvr"


def _template(value: Any, look: Look) -> Any:
    if value in ("empty", None):
        return Unused("the chat template is the model's own")
    return Unused(
        f"the chat template is the model's own, and {value} is one of MindSpeed-RL's; data_args.template names another"
    )


def _swanlab(native: str) -> Any:
    return lambda value, look: Sets({f"tracker_kwargs.swanlab.{native}": value}) if value else Unused("it is empty")


def _wandb(native: str) -> Any:
    return lambda value, look: Sets({f"tracker_kwargs.wandb.{native}": value}) if value else Unused("it is empty")


def _tracked(value: Any, look: Look) -> Any:
    return "swanlab" if value is True else Unused("it is off")


def _of_turns(value: Any, look: Look) -> Any:
    turns = look(f"{_RL}.multi_turn_enable") is True
    return Impossible(_TOOLS, "tools and tool_use") if turns else Unused("multi_turn_enable is not true")


def _reference(native: str, value: Any, look: Look) -> Any:
    used = above_zero(look(f"{_RL}.init_kl_coef")) or look.kl_loss or look.kl_reward
    if not used:
        return Unused("no term uses the reference")
    return Sets({f"reference.{native}": value}, {"reference.strategy_args.strategy_name": "megatron_infer"})


def _virtual(value: Any, look: Look) -> Any:
    return Impossible(
        "a pipeline counts its virtual stages, and not their layers",
        f"virtual_pipeline_model_parallel_size in {_OPTIONS}",
    )


SCHEMA_ROWS: Final = (
    *no_effect("the architecture is that of the model's own config.json", *under(_SECTIONS, *_ARCHITECTURE)),
    *no_effect("a kernel or a layout of memory that changes no number", *under(_SECTIONS, *_KERNELS)),
    *no_effect("an option of another program of MindSpeed's", *under((_MEGATRON,), *_OTHER_PROGRAMS)),
    Row(f"{_MEGATRON}.log_interval", "logging_steps"),
    Row(f"{_MEGATRON}.eval_interval", "eval_steps"),
    Row(f"{_MEGATRON}.prompt_type", note="the model's own template", convert=_template),
    *no_effect("templates are Jinja, `data_args.template`", f"{_MEGATRON}.prompt_type_path"),
    agreeing(
        f"{_MEGATRON}.optimizer",
        "actor_train.training_args",
        "AdamW is the optimiser",
        lambda value, look: value == "adam",
    ),
    agreeing(
        f"{_MEGATRON}.accumulate_allreduce_grads_in_fp32",
        f"{_OPTIONS}.grad_reduce_in_fp32",
        "gradients are added up in fp32",
    ),
    Row(
        f"{_MEGATRON}.ddp_bucket_size",
        f"{_OPTIONS}.ddp_bucket_size",
        "with `megatron_train`",
        lambda value, look: Sets({f"{_OPTIONS}.ddp_bucket_size": value}, _TRAINER),
    ),
    Row(f"{_MEGATRON}.num_layers_per_virtual_pipeline_stage", note="not possible", convert=_virtual),
    Row(f"{_MEGATRON}.moe_aux_loss_coeff", note="0 only", convert=unless((0, 0.0), "no loss of balance is added")),
    Row(
        f"{_MEGATRON}.recompute_activation_function",
        note="false only",
        convert=unless((False,), "activations are computed again by the layer", "recompute_granularity"),
    ),
    Row(
        f"{_MEGATRON}.swap_attention",
        note="false only",
        convert=unless((False,), "activations stay on their device", "recompute_granularity: full"),
    ),
    *impossible(
        "stages hold layers and nothing else", f"{_MEGATRON}.noop_layers", instead="uneven first and last stages"
    ),
    # Roles beside the policy
    *(
        Row(
            f"ref_config.{key}",
            f"reference.strategy_args.strategy_config.{key}",
            "where there is a reference",
            partial(_reference, f"strategy_args.strategy_config.{key}"),
        )
        for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    ),
    *no_effect(
        "a reference begins as the policy", *under(("ref_config", "reward_config"), "model", "load", "micro_batch_size")
    ),
    *no_effect("a tool that measures on NPUs, or a model of pictures", "msprobe_config", "vit_config"),
    *no_effect("roll profile measures a step", "profiler_config"),
    # The algorithm
    Row(f"{_RL}.use_swanlab", "track_with", "true is `swanlab`", _tracked),
    *(
        Row(f"{_RL}.swanlab_{key}", f"tracker_kwargs.swanlab.{native}", "of that tracker", _swanlab(native))
        for key, native in {
            "mode": "mode",
            "project": "project",
            "exp_name": "experiment_name",
            "save_dir": "logdir",
        }.items()
    ),
    *(
        Row(f"{_RL}.wandb_{key}", f"tracker_kwargs.wandb.{native}", "of that tracker", _wandb(native))
        for key, native in {"project": "project", "exp_name": "name", "save_dir": "dir"}.items()
    ),
    *no_effect(
        "a step hands its whole batch from role to role",
        *under(_RL, "dynamic_sampling_dispatch_size", "actor_image_embeds_dispatch_size"),
    ),
    *no_effect("passes are cut by tokens alone", *under(_RL, "dynamic_max_batch_size", "ref_dynamic_max_batch_size")),
    *no_effect(
        "passes are cut by tokens alone", *under(_RL, "actor_dynamic_max_batch_size", "update_dynamic_max_batch_size")
    ),
    *no_effect(
        "the transport between processes is Ray's", *under(_RL, "data_strategy", "transfer_queue_data_shard_num")
    ),
    *no_effect(
        "the transport between processes is Ray's",
        *under(_RL, "transfer_queue_data_shard_port_base", "hccl_buffersize"),
    ),
    *no_effect("`system_envs` is the environment of processes", f"{_RL}.runtime_env_path"),
    *no_effect("experts are spread as the strategy's options say", f"{_RL}.tp_split_expert"),
    *no_effect("roles take turns on all devices", *under(_RL, "integrated_mode_config", "num_samples_per_step")),
    *no_effect("it is DPO's, and this samples", f"{_RL}.beta"),
    agreeing(
        f"{_RL}.async_engine",
        "actor_infer.strategy_args.strategy_name",
        "requests are sampled one by one as engines are free",
    ),
    Row(
        f"{_RL}.partial_rollout_max_split",
        note="1 only",
        convert=unless(
            (1,), "a response is sampled to its end by one version of the weights", "async_generation_ratio: 1"
        ),
    ),
    *no_effect("only where responses are continued from step to step", f"{_RL}.require_max_age_all_finished"),
    Row(f"{_RL}.is_multimodal", note="false only", convert=unless((False,), "a policy is shown text only")),
    *no_effect(
        "a policy is shown text only",
        *under(_RL, "vit_resource", "vit_forward_micro_batch_size", "reuse_image_embeds", "colocate_actor_and_vit"),
        *under(_GENERATE, "limit_mm_image_per_prompt", "limit_mm_video_per_prompt"),
    ),
    Row(f"{_RL}.multi_turn_enable", note="false only", convert=unless((False,), _TOOLS, "tools: [python]")),
    *(
        Row(f"{_RL}.{key}", note="with `multi_turn_enable`", convert=_of_turns)
        for key in (
            *("tool_config_path", "max_tool_calls", "max_parallel_calls", "max_total_response_length"),
            *("max_tool_response_length", "tool_response_truncate_side", "tool_parser_format"),
        )
    ),
    # The engine
    agreeing(
        f"{_GENERATE}.tokenizer_name_or_path",
        "pretrain",
        "the tokenizer is the model's",
        lambda value, look: value == look(f"{_MEGATRON}.tokenizer_name_or_path", look("pretrain")),
    ),
    *no_effect("engines are as many as the devices make", f"{_GENERATE}.data_parallel_size"),
    *no_effect(
        "experts lie where the engine puts them", *under(_GENERATE, "eplb_token_collects", "eplb_token_save_path")
    ),
)
"""Keys of the schema."""
