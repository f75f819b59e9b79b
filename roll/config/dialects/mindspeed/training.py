"""MindSpeed-RL: ``megatron_training``, ``actor_config`` and ``critic_config``."""

from __future__ import annotations

import re
from typing import Any, Final

from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    choices,
    impossible,
    negated,
    no_effect,
    plain,
    whole,
)
from roll.config.errors import FixableError

_MEGATRON = "megatron_training"
_ACTOR = "actor_config"
_CRITIC = "critic_config"
_OPTIONS = "actor_train.strategy_args.strategy_config"
_TRAINER: Final = {"actor_train.strategy_args.strategy_name": "megatron_train"}

_STAGES = {"ray_grpo": "grpo", "ray_dapo": "grpo", "ray_gspo": "grpo", "ray_ppo": "gae"}
"""Algorithms of the guide by the estimator that makes them."""

_LAYERS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's layers, in the names of the model hub."""

_ARCHITECTURE = "the architecture is that of the model's own config.json"
_KERNELS = "a kernel or a layout of memory that changes no number, which this version decides itself"
_SAVING = "a checkpoint is always whole, and a resumed run takes all of it"
_NPU = "an option of Ascend NPUs"


def _rollout_batch(value: Any, look: Look) -> int:
    prompts = whole(value, "the batch size")
    return prompts * look.responses("rl_config.n_samples_per_prompt") if look.agentic else prompts


def _stage(value: Any, look: Look) -> Any:
    if not isinstance(value, str) or value not in _STAGES:
        return Impossible(f"the algorithm {value} is not here", f"use {', '.join(_STAGES)}")
    return Sets(fills={"adv_estimator": _STAGES[value]})


def _length(value: Any, look: Look) -> Any:
    other = look("generate_config.max_model_len")
    return value if other in (None, value) else Unused("generate_config.max_model_len says how long a sample may be")


def _trainer(value: Any, look: Look) -> Any:
    return Sets(_TRAINER) if value is True else Unused("only Megatron's core models are known")


def _option(name: str) -> Any:
    """Convert an option of Megatron that has this name here, and goes with that trainer."""
    return lambda value, look: Sets({f"{_OPTIONS}.{name}": value}, _TRAINER)


def _sequence_parallel(value: Any, look: Look) -> Any:
    if value is True and look(f"{_ACTOR}.tensor_model_parallel_size", 1) == 1:
        return Unused("one rank holds every matrix whole")
    return _option("sequence_parallel")(value, look)


def _answer_column(value: Any, look: Look) -> Any:
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    return Impossible("one column holds the right answer", "write actor_train.data_args.ground_truth")


def _lora_target(value: Any, look: Look) -> Any:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    return [layer for name in value for layer in _LAYERS.get(name, (name,))]


def _policy(value: Any, look: Look) -> Any:
    if look(f"{_MEGATRON}.tokenizer_name_or_path") is None:
        return value
    note = f"weights come from the model of {_MEGATRON}.tokenizer_name_or_path, in the Hugging Face format"
    return Sets({"pretrain": look(f"{_MEGATRON}.tokenizer_name_or_path")}, note=note)


def _called_alike(value: Any, look: Look) -> bool:
    return is_called_alike(value, look(f"{_MEGATRON}.tokenizer_name_or_path", look("pretrain")))


def is_called_alike(architecture: Any, path: Any) -> bool:
    """Tell whether the name of an architecture is that of the model at a path, whose config.json says the same."""
    names = [re.sub(r"[^a-z0-9]", "", str(name).lower()) for name in (architecture, path)]
    return bool(names[0]) and names[0] in names[1]


def _end(section: str) -> Any:
    """Convert the rate at which a schedule ends to its share of the rate at which it begins."""

    def convert(value: Any, look: Look) -> Any:
        rate = look(f"{section}.lr")
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, rate))
        if value == 0:
            return 0.0
        if not numbers or not rate:
            raise FixableError("it is a share of the learning rate here.", f"set {section}.lr.")
        return value / rate

    return convert


def _layers_of_stages(value: Any, look: Look) -> Any:
    """Convert the layers of every stage: here the first and the last may differ from the others."""
    sizes = [int(size) for size in str(value).split(",") if size.strip().isdigit()]
    if len(sizes) < 2 or len(set(sizes)) == 1:
        return Unused("equal stages are the default")
    if len(set(sizes[1:-1])) > 1 or len(sizes) == 2:
        return Impossible(
            "stages in the middle of a pipeline have the same number of layers",
            f"set num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage in {_OPTIONS}",
        )
    ends = {"num_layers_in_first_pipeline_stage": sizes[0], "num_layers_in_last_pipeline_stage": sizes[-1]}
    return Sets({f"{_OPTIONS}.{key}": size for key, size in ends.items()}, _TRAINER)


def _optimizer(section: str, target: str) -> tuple[Row, ...]:
    """Return the rows of the optimiser of a role."""
    return (
        *plain(
            section,
            f"{target}.training_args",
            micro_batch_size="per_device_train_batch_size",
            lr="learning_rate",
            weight_decay="weight_decay",
            lr_warmup_fraction="warmup_ratio",
            adam_beta1="adam_beta1",
            adam_beta2="adam_beta2",
            adam_eps="adam_epsilon",
        ),
        Row(
            f"{section}.lr_decay_style",
            f"{target}.training_args.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices({"constant": "constant_with_warmup"}),
        ),
        Row(f"{section}.min_lr", f"{target}.training_args.min_lr_ratio", "divided by `lr`", _end(section)),
        *(
            agreeing(f"{section}.{name}", native, _SAVING)
            for name, native in (
                ("no_load_optim", "optimizer_from"),
                ("no_load_rng", "resume_from_checkpoint"),
                ("finetune", "resume_from_checkpoint"),
            )
        ),
        Row(
            f"{section}.no_save_optim",
            "checkpoint_config.contents",
            "true is `weights`: it leaves them out, although the guide says the opposite",
            lambda value, look: {True: "weights", False: "all"}.get(value, value) if isinstance(value, bool) else value,
        ),
        agreeing(
            f"{section}.no_save_rng",
            "checkpoint_config.contents",
            "the random state is saved with the optimiser",
            lambda value, look: value == look(f"{section}.no_save_optim", False),
        ),
        agreeing(f"{section}.model", "pretrain", _ARCHITECTURE, _called_alike),
    )


def _parallel(section: str, role: str) -> tuple[Row, ...]:
    """Return the rows of how the model of a role is spread."""
    config, name = f"{role}.strategy_args.strategy_config", f"{role}.strategy_args.strategy_name"

    def option(key: str) -> Any:
        return lambda value, look: Sets({f"{config}.{key}": value}, {name: "megatron_train"})

    return tuple(
        Row(f"{section}.{key}", f"{config}.{key}", "with `megatron_train`", option(key))
        for key in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    )


_OPTION_NAMES = {
    "use_distributed_optimizer": "use_distributed_optimizer",
    "recompute_granularity": "recompute_granularity",
    "recompute_num_layers": "recompute_num_layers",
    "recompute_method": "recompute_method",
    "moe_token_dispatcher_type": "moe_token_dispatcher_type",
    "moe_grouped_gemm": "moe_grouped_gemm",
    "moe_permutation_async_comm": "moe_shared_expert_overlap",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "use_fused_swiglu": "bias_activation_fusion",
    "use_fused_rotary_pos_emb": "apply_rope_fusion",
    "attention_softmax_in_fp32": "attention_softmax_in_fp32",
}
"""Options of Megatron in the guide and here."""

_JOB = (
    Row(
        f"{_MEGATRON}.global_batch_size",
        "rollout_batch_size",
        "agentic: times the responses per prompt",
        _rollout_batch,
    ),
    Row(
        f"{_MEGATRON}.data_path",
        "actor_train.data_args.file_name",
        "a data set, or what the files of its Megatron form (`.bin`, `.idx`) begin with",
    ),
    Row(f"{_MEGATRON}.dataset_additional_keys", "actor_train.data_args.ground_truth", "one column", _answer_column),
    Row(f"{_MEGATRON}.no_shuffle", "actor_train.data_args.shuffle", "turned around", negated),
    Row(f"{_MEGATRON}.seq_length", "sequence_length", "where `max_model_len` says nothing else", _length),
    Row(f"{_MEGATRON}.train_iters", "max_steps"),
    Row(f"{_MEGATRON}.save_interval", "save_steps"),
    Row(f"{_MEGATRON}.seed", "seed"),
    Row(f"{_MEGATRON}.stage", "adv_estimator", "`ray_grpo`, `ray_dapo`, `ray_ppo`; where it is unset", _stage),
    Row(f"{_MEGATRON}.bf16", "actor_train.model_args.dtype", "true is `bf16`", choices({True: "bf16", False: "fp32"})),
    Row(f"{_MEGATRON}.tokenizer_name_or_path", "pretrain", "the model in the Hugging Face format"),
    Row(
        f"{_MEGATRON}.use_mcore_models", "actor_train.strategy_args.strategy_name", "true is `megatron_train`", _trainer
    ),
    Row(f"{_MEGATRON}.lora_r", "actor_train.model_args.lora_rank"),
    Row(f"{_MEGATRON}.lora_alpha", "actor_train.model_args.lora_alpha"),
    Row(
        f"{_MEGATRON}.lora_target_modules",
        "actor_train.model_args.lora_target",
        "in the names of the model hub",
        _lora_target,
    ),
    agreeing(
        f"{_MEGATRON}.tokenizer_type",
        "pretrain",
        "the tokenizer is the model's",
        lambda value, look: value == "PretrainedFromHF",
    ),
    agreeing(f"{_MEGATRON}.model", "pretrain", _ARCHITECTURE, _called_alike),
    agreeing(
        f"{_MEGATRON}.full_shuffle_instruction_dataset",
        "actor_train.data_args.shuffle",
        "rows are drawn in an order of their own in each epoch, and none across epochs",
        lambda value, look: value is False,
    ),
    Row(
        f"{_MEGATRON}.split",
        note="Validation files are validation.data_args.file_name.",
        only=("100,0,0", "1,0,0"),
        agrees="actor_train.data_args.file_name",
    ),
    Row(f"{_MEGATRON}.sequence_parallel", f"{_OPTIONS}.sequence_parallel", "above one rank", _sequence_parallel),
    *(
        Row(f"{_MEGATRON}.{key}", f"{_OPTIONS}.{name}", "with `megatron_train`", _option(name))
        for key, name in _OPTION_NAMES.items()
    ),
    Row(
        f"{_MEGATRON}.use_flash_attn",
        f"{_OPTIONS}.attention_backend",
        "true is `flash`, false `auto`",
        lambda value, look: _option("attention_backend")("flash" if value is True else "auto", look),
    ),
    Row(
        f"{_MEGATRON}.no_gradient_accumulation_fusion",
        f"{_OPTIONS}.gradient_accumulation_fusion",
        "turned around",
        lambda value, look: _option("gradient_accumulation_fusion")(negated(value, look), look),
    ),
    Row(
        f"{_MEGATRON}.no_masked_softmax_fusion",
        f"{_OPTIONS}.masked_softmax_fusion",
        "turned around",
        lambda value, look: _option("masked_softmax_fusion")(negated(value, look), look),
    ),
    *(
        Row(
            f"{_MEGATRON}.{name}",
            note="Nothing is dropped out here.",
            only=(0, 0.0),
            agrees="actor_train.model_args",
        )
        for name in ("attention_dropout", "hidden_dropout")
    ),
    agreeing(
        f"{_MEGATRON}.reset_attention_mask",
        "actor_train.use_sequence_packing",
        "samples that are laid end to end never see each other",
    ),
    agreeing(
        f"{_MEGATRON}.no_pad_to_seq_lengths",
        "actor_train.use_sequence_packing",
        "the samples of a pass are as long as the longest of them",
    ),
    *no_effect(_ARCHITECTURE, f"{_MEGATRON}.init_method_std"),
    *no_effect(
        _KERNELS,
        *(
            f"{_MEGATRON}.{name}"
            for name in (
                "use_fused_rmsnorm",
                "lora_fusion",
                "shape_order",
                "variable_seq_lengths",
            )
        ),
    ),
    *no_effect("a model with adapters is saved whole", f"{_MEGATRON}.lora_ckpt_filter"),
    agreeing(
        f"{_MEGATRON}.distributed_backend",
        "actor_train.strategy_args.strategy_name",
        "the strategy chooses how its ranks talk: by NCCL on GPUs",
        lambda value, look: value == "nccl",
    ),
    *no_effect("machines of a run see one folder of files", f"{_MEGATRON}.no_shared_storage"),
    *impossible(
        _NPU,
        f"{_MEGATRON}.use_ascend_coc",
        f"{_MEGATRON}.moe_alltoall_overlap_comm",
        instead="remove it: it changes no number",
    ),
    *no_effect(f"{_NPU} with `use_ascend_coc`", f"{_MEGATRON}.coc_fused_kernel", f"{_MEGATRON}.coc_parallel_num"),
    *impossible(
        "Megatron's optimiser stays on its device",
        f"{_MEGATRON}.swap_optimizer",
        instead="use fsdp_train with offload_params",
    ),
)

_POLICY = (
    *_optimizer(_ACTOR, "actor_train"),
    Row(f"{_ACTOR}.clip_grad", "max_grad_norm"),
    Row(f"{_ACTOR}.load", "pretrain", "where `tokenizer_name_or_path` is unset; in the Hugging Face format", _policy),
    Row(f"{_ACTOR}.save", "checkpoint_config.output_dir"),
    *_parallel(_ACTOR, "actor_train"),
    Row(
        f"{_ACTOR}.num_layer_list",
        (f"{_OPTIONS}.num_layers_in_first_pipeline_stage", f"{_OPTIONS}.num_layers_in_last_pipeline_stage"),
        "the stages between have the same number",
        _layers_of_stages,
    ),
    *(
        Row(f"{_ACTOR}.{name}", f"{_OPTIONS}.{name}", "with `megatron_train`", _option(name))
        for name in ("recompute_granularity", "recompute_num_layers", "recompute_method")
    ),
    Row(
        f"{_ACTOR}.attention_mask_type",
        note="A policy sees what came before.",
        only=("causal",),
        agrees="actor_train.model_args",
    ),
    *no_effect("ranks that share a sequence pass its parts around", f"{_ACTOR}.context_parallel_algo"),
    *impossible(
        "experts are not spread over the tensor-parallel ranks as well",
        f"{_ACTOR}.moe_tp_extend_ep",
        instead=f"set expert_tensor_parallel_size: 1 in {_OPTIONS}",
    ),
)

_VALUES = (
    *_optimizer(_CRITIC, "critic"),
    *_parallel(_CRITIC, "critic"),
    *no_effect("one limit for policy and critic, `max_grad_norm`", f"{_CRITIC}.clip_grad"),
    *no_effect(
        "the critic begins as `critic.model_args.model_name_or_path` says, else as the policy", f"{_CRITIC}.load"
    ),
    *no_effect("the critic is saved beside the policy", f"{_CRITIC}.save"),
)

TRAINING_ROWS: Final = (*_JOB, *_POLICY, *_VALUES)
"""The keys of the models that are trained."""
