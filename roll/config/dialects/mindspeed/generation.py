"""MindSpeed-RL: ``generate_config``, of an engine that is always vLLM."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import Look, Row, Sets, Unused, agreeing, impossible, no_effect, own_code_row

_GENERATE = "generate_config"
_SAMPLING = "actor_infer.generating_args"
_CONFIG = "actor_infer.strategy_args.strategy_config"
_ENGINE: Final = {"actor_infer.strategy_args.strategy_name": "vllm"}

_DTYPES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}

_NAMES = {
    "max_tokens": "max_new_tokens",
    "top_p": "top_p",
    "top_k": "top_k",
    "temperature": "temperature",
    "min_p": "min_p",
}


def _option(name: str) -> Any:
    """Convert an option of vLLM that is handed to it under its own name."""
    return lambda value, look: Sets({f"{_CONFIG}.{name}": value}, _ENGINE)


def _devices(value: Any, look: Look) -> Any:
    return Sets({"actor_infer.num_gpus_per_worker": value}, _ENGINE)


def _stages(value: Any, look: Look) -> Any:
    return Unused() if value == 1 else _option("pipeline_parallel_size")(value, look)


def _experts(value: Any, look: Look) -> Any:
    return Unused() if value == 1 else _option("enable_expert_parallel")(True, look)


def _shared(value: Any, look: Look) -> bool:
    # Models that take turns on devices always hand their memory over.
    return value is True and look("rl_config.use_integrated_worker") is True


def _sampling(section: str) -> tuple[Row, ...]:
    """Return the rows of how tokens are sampled."""
    return (
        *(Row(f"{section}.{key}", f"{_SAMPLING}.{name}") for key, name in _NAMES.items()),
        agreeing(
            f"{section}.logprobs",
            "old_log_probs",
            "the log-prob of the token that was sampled is kept, and no other",
            lambda value, look: value in (0, 1),
        ),
        *no_effect("responses are always turned into text", f"{section}.detokenize"),
        agreeing(
            f"{section}.seed",
            "seed",
            "every request has a seed of its own, from `seed`",
            lambda value, look: value == look("megatron_training.seed", look.native("seed")),
        ),
    )


GENERATION_ROWS: Final = (
    *_sampling(_GENERATE),
    *_sampling(f"{_GENERATE}.sampling_config"),
    Row(f"{_GENERATE}.max_num_seqs", "max_running_requests"),
    Row(f"{_GENERATE}.max_model_len", "sequence_length"),
    Row(f"{_GENERATE}.infer_tensor_parallel_size", "actor_infer.num_gpus_per_worker", "with `vllm`", _devices),
    Row(f"{_GENERATE}.infer_pipeline_parallel_size", f"{_CONFIG}.pipeline_parallel_size", "with `vllm`", _stages),
    Row(
        f"{_GENERATE}.infer_expert_parallel_size",
        f"{_CONFIG}.enable_expert_parallel",
        "above 1: on all devices of an engine",
        _experts,
    ),
    *(
        Row(f"{_GENERATE}.{name}", f"{_CONFIG}.{name}", "with `vllm`", _option(name))
        for name in (
            "gpu_memory_utilization",
            "enforce_eager",
            "max_num_batched_tokens",
            "enable_expert_parallel",
            "enable_prefix_caching",
        )
    ),
    Row(
        f"{_GENERATE}.dtype",
        "actor_infer.model_args.dtype",
        "",
        lambda value, look: _DTYPES.get(value, value) if isinstance(value, str) else value,
    ),
    *no_effect("engines of this version step one token at a time", f"{_GENERATE}.num_scheduler_steps"),
    own_code_row(f"{_GENERATE}.trust_remote_code"),
    *(
        agreeing(
            f"{_GENERATE}.offload_train_{name}",
            "actor_train.device_mapping",
            "models that share devices hand their memory over to each other",
            _shared,
        )
        for name in ("optimizer", "grad", "param")
    ),
    *impossible(
        "a graph mode of Ascend NPUs",
        f"{_GENERATE}.torchair_graph",
        instead="set enforce_eager: false for CUDA graphs",
    ),
    *impossible("a scheduler of Ascend NPUs", f"{_GENERATE}.ascend_scheduler_config_enabled", instead="remove it"),
    *impossible("experts lie where the engine puts them", f"{_GENERATE}.expert_map_path", instead="remove it"),
)
"""The keys of sampling."""
