"""ChatLearn: ``models.policy``, ``models.reward`` and ``models.rollout_manager``: how responses are sampled."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.chatlearn.sections import DEVICES, MANAGER, POLICY, RESPONSES, REWARD, RUN, TRAINER
from roll.config.dialects.chatlearn.strategies import memory_rows
from roll.config.dialects.engines import engine_at, option_rows, size_row
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    impossible,
    no_effect,
    own_code_row,
    plain,
    under,
    whole,
)

_engine = engine_at(f"{RUN}.rollout_backend")
_SAMPLING: Final = "actor_infer.generating_args"


def _only(off: tuple[Any, ...], reason: str, instead: str) -> Any:
    return lambda value, look: Unused() if value in off else Impossible(reason, instead)


def _graders(value: Any, look: Look) -> Any:
    if look.agentic or look.native("rewards") is not None or look(f"{RUN}.data_path") is None:
        return Unused("graders run `verifier_parallel` at a time")
    total, each = look(f"{REWARD}.num_cpu", 1), look(f"{REWARD}.cpu_per_process", 1)
    graders = whole(total, "num_cpu") // whole(each, "cpu_per_process")
    return Sets({"rewards.math_rule.verifier_parallel": max(1, graders)})


def _as_the_sampler(key: str) -> Any:
    """Tell whether a further section repeats what the sampler, or the trainer, says."""
    return lambda value, look: value in (look(f"{POLICY}.{key}", value), look(f"{TRAINER}.{key}"))


_PENALTY: Final = "it is not charged"

SAMPLER_ROWS: Final = (
    Row(RESPONSES, "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    Row(f"{POLICY}.max_prompt_tokens_length", "prompt_length"),
    Row(f"{POLICY}.max_response_tokens_length", ("response_length", f"{_SAMPLING}.max_new_tokens")),
    *plain(
        POLICY,
        _SAMPLING,
        temperature="temperature",
        top_p="top_p",
        top_k="top_k",
        repetition_penalty="repetition_penalty",
    ),
    *plain(
        POLICY,
        "val_generating_args",
        eval_temperature="temperature",
        eval_top_p="top_p",
        eval_top_k="top_k",
        eval_repetition_penalty="repetition_penalty",
    ),
    *(
        Row(
            f"{POLICY}.{name}",
            (),
            "only 0",
            _only((0, 0.0), _PENALTY, "repetition_penalty"),
            agrees=f"{_SAMPLING}.repetition_penalty",
        )
        for name in ("presence_penalty", "frequency_penalty", "eval_presence_penalty", "eval_frequency_penalty")
    ),
    Row(f"{POLICY}.load", "pretrain", "the sampler has the weights of the policy"),
    Row(f"{POLICY}.generation_batch_size", "max_running_requests"),
    *option_rows(POLICY, _engine, "gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens"),
    size_row(f"{POLICY}.tensor_model_parallel_size", _engine),
    *(
        Row(
            f"{POLICY}.{name}",
            (),
            "only 1",
            _only((1,), what, "raise tensor_model_parallel_size"),
            agrees="actor_infer.num_gpus_per_worker",
        )
        for name, what in {
            "pipeline_model_parallel_size": "an engine divides its matrices and not its layers",
            "expert_model_parallel_size": "an engine divides its matrices, experts included, and nothing else",
        }.items()
    ),
    Row(f"{POLICY}.seq_length", "sequence_length"),
    Row(
        f"{POLICY}.trainable",
        note="The sampler takes its weights from policy_trainer.",
        only=(False,),
        agrees="actor_infer",
    ),
    Row(f"{POLICY}.enable_thinking", "actor_train.data_args.enable_thinking"),
    agreeing(
        f"{POLICY}.gpu_per_process",
        "actor_infer.num_gpus_per_worker",
        "tensor_model_parallel_size says how many an engine has",
        lambda value, look: value in (1, look(f"{POLICY}.tensor_model_parallel_size")),
    ),
    agreeing(
        f"{POLICY}.num_gpu",
        "actor_infer.device_mapping",
        "models.policy_trainer.num_gpu counts them",
        lambda value, look: look(f"{TRAINER}.num_gpu") is not None,
    ),
    *no_effect(DEVICES, *(f"{POLICY}.{name}" for name in ("num_cpu", "cpu_per_process", "num_replica"))),
    *no_effect("weights are handed over after every step", f"{POLICY}.sync_frequency", f"{POLICY}.replica_dp_size"),
    *memory_rows(POLICY, "actor_infer"),
    *no_effect(
        "the engine is given token ids and has no columns", f"{POLICY}.vllm_prompt_key", f"{POLICY}.vllm_input_ids_key"
    ),
    agreeing(
        f"{POLICY}.enable_stage_resume",
        "resume_from_checkpoint",
        "a run that is resumed samples its step again",
        lambda value, look: value is False,
    ),
    *no_effect("the sizes that an engine records are its own to choose", f"{POLICY}.max_seq_len_to_capture"),
    own_code_row(f"{POLICY}.trust_remote_code"),
    *no_effect("each request has a seed of its own, from `seed`", f"{POLICY}.seed"),
    *no_effect("a scheduler routes requests to the engines, `generate_opt_level`", f"{POLICY}.is_sync_mode"),
    *no_effect("the engine has no packs", f"{POLICY}.packing", f"{POLICY}.max_token_in_packing"),
    Row(f"{REWARD}.num_cpu", "rewards.math_rule.verifier_parallel", "over `cpu_per_process`", _graders),
    agreeing(
        f"{REWARD}.cpu_per_process",
        "rewards.math_rule.verifier_parallel",
        "graders run `verifier_parallel` at a time",
        lambda value, look: isinstance(_graders(value, look), Sets) and look(f"{REWARD}.num_cpu") is not None,
    ),
    *no_effect(
        "graders take one response at a time, `verifier_parallel` of them",
        *under(
            REWARD,
            *("generation_batch_size", "num_gpu", "gpu_per_process", "trainable", "packing", "max_token_in_packing"),
            *("sync_frequency", "free_gpu_memory", "load", "seed", "replica_dp_size", "num_replica"),
            *("trust_remote_code", "num_inference_per_prompt", "enable_thinking", "max_prompt_tokens_length"),
            "max_response_tokens_length",
        ),
    ),
)
"""The keys of sampling and grading."""

_OF_ROUNDS: Final = "only where responses are continued from episode to episode (partial_rollout)"

MANAGER_ROWS: Final = (
    *(
        agreeing(f"{MANAGER}.{name}", native, f"{POLICY}.{name} says it", _as_the_sampler(name))
        for name, native in {
            "num_inference_per_prompt": "num_return_sequences_in_group",
            "enable_thinking": "actor_train.data_args.enable_thinking",
            "max_prompt_tokens_length": "prompt_length",
            "max_response_tokens_length": "response_length",
            "load": "pretrain",
        }.items()
    ),
    Row(f"{MANAGER}.max_concurrent_per_engine", "max_running_requests"),
    *no_effect(
        "a scheduler gives requests to engines that are free",
        *(
            f"{MANAGER}.{name}"
            for name in ("num_cpu", "cpu_per_process", "use_dynamic_load_blance", "generation_batch_size", "num_gpu")
        ),
    ),
    *no_effect(
        _OF_ROUNDS,
        *(f"{MANAGER}.{name}" for name in ("mini_response_per_prompt", "max_rollout_round", "rollout_ratio")),
    ),
    *impossible(
        "a prompt has one response",
        *(f"models.{name}" for name in ("agent", "agent_flow", "policy_agent")),
        instead="play an environment in the agentic pipeline",
    ),
)
"""The keys of what gives requests to engines."""
