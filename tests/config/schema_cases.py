"""What keys of the systems' own schemas set that their guides do not print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Case = tuple[Any, Mapping[str, Any], Mapping[str, Any]]
"""The value of the key, other keys beside it, and the native values that follow."""

_ACTOR: Final = "actor_train.strategy_args.strategy_config"
_WEIGHTS: Final = {"checkpoint_config.contents": "weights"}
_REFERENCE: Final = {"rl_config.init_kl_coef": 0.1}
_TASKS: Final = "buffer.explorer_input.taskset"

VERL: dict[str, Case] = {
    **{
        f"{section}.{name}": (["model"], {}, _WEIGHTS)
        for section in ("actor_rollout_ref.actor.checkpoint", "checkpoint", "trainer.checkpoint")
        for name in ("save_contents", "contents")
    },
    "critic.model.lora.rank": (8, {}, {"critic.model_args.lora_rank": 8}),
    "critic.model.lora.alpha": (16, {}, {"critic.model_args.lora_alpha": 16}),
    "critic.model.lora.target_modules": (["q_proj"], {}, {"critic.model_args.lora_target": ["q_proj"]}),
}

MINDSPEED: dict[str, Case] = {
    **{f"{section}.no_save_optim": (True, {}, _WEIGHTS) for section in ("actor_config", "critic_config")},
    **{
        f"generate_config.{section}min_p": (0.05, {}, {"actor_infer.generating_args.min_p": 0.05})
        for section in ("", "sampling_config.")
    },
    "megatron_training.attention_softmax_in_fp32": (False, {}, {_ACTOR: {"attention_softmax_in_fp32": False}}),
    "megatron_training.no_masked_softmax_fusion": (False, {}, {_ACTOR: {"masked_softmax_fusion": True}}),
    "megatron_training.ddp_bucket_size": (1000, {}, {_ACTOR: {"ddp_bucket_size": 1000}}),
    "megatron_training.eval_interval": (7, {}, {"eval_steps": 7}),
    "megatron_training.log_interval": (3, {}, {"logging_steps": 3}),
    **{
        f"ref_config.{name}": (2, _REFERENCE, {"reference.strategy_args.strategy_config": {name: 2}})
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    },
    "rl_config.use_swanlab": (True, {}, {"track_with": ["swanlab"]}),
    **{
        f"rl_config.swanlab_{name}": ("x", {}, {"tracker_kwargs": {"swanlab": {native: "x"}}})
        for name, native in (
            ("exp_name", "experiment_name"),
            ("mode", "mode"),
            ("project", "project"),
            ("save_dir", "logdir"),
        )
    },
    **{
        f"rl_config.wandb_{name}": ("x", {}, {"tracker_kwargs": {"wandb": {native: "x"}}})
        for name, native in (("exp_name", "name"), ("project", "project"), ("save_dir", "dir"))
    },
}

TRINITY: dict[str, Case] = {
    f"{_TASKS}.format.chat_template": ("chatml", {}, {"actor_train.data_args.template": "chatml"}),
    f"{_TASKS}.format.enable_thinking": (True, {}, {"actor_train.data_args.enable_thinking": True}),
    "buffer.explorer_input.tasksets": (
        [{"path": "a.jsonl"}, {"path": "b.jsonl"}],
        {},
        {"actor_train.data_args.file_name": ["a.jsonl", "b.jsonl"]},
    ),
    "data_processor.experience_pipeline.operators": (
        [{"name": "reward_std_filter", "args": {"threshold": 0.2}}],
        {},
        {"operators.experience.0.args": {"least": 0.2}},
    ),
    "data_processor.task_pipeline.operators": (
        [{"name": "document_deduplicator"}],
        {f"{_TASKS}.format.prompt_key": "question"},
        {"operators.tasks.0.args": {"columns": ["question"]}},
    ),
    "data_processor.task_pipeline.inputs": (["a.jsonl"], {}, {"actor_train.data_args.file_name": ["a.jsonl"]}),
    "model.min_response_tokens": (3, {}, {"actor_infer.generating_args.min_new_tokens": 3}),
    "trainer.save_hf_checkpoint": ("last", {}, {"checkpoint_config.hf_model": "last"}),
}
