"""verl: ``actor_rollout_ref.rollout``: how responses are sampled, in training and in evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from roll.config.dialects.engines import dtype_row, engine_at, option_rows, size_row
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    impossible,
    no_effect,
    plain,
)
from roll.config.dialects.verl.sections import ROLLOUT, per_device

_SAMPLING: Final = "actor_infer.generating_args"
_ENGINE: Final = "actor_infer.strategy_args.strategy_config"
_VALIDATION: Final = "validation.generating_args"
_NO_TURNS: Final = "a prompt has one response"
_PLAY: Final = "play an environment with train_env_manager.tools in the agentic pipeline"
_OF_PICTURES: Final = ("disable_mm_preprocessor_cache", "limit_mm_per_prompt", "mm_processor_kwargs")
"""Options of vLLM that say how it reads pictures."""

_engine = engine_at(f"{ROLLOUT}.name")


def _name(value: Any, look: Look) -> Any:
    if value == "trtllm":
        return Impossible("there is no engine trtllm", "use vllm or sglang")
    return GENERATION_STRATEGIES.get(value, value) if isinstance(value, str) else value


def _mode(value: Any, look: Look) -> Any:
    return {"async": 1, "sync": 0}.get(value, value) if isinstance(value, str) else value


def _engine_options(engine: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if _engine(look) != engine:
            return Unused(f"{ROLLOUT}.name is not {engine}")
        if not isinstance(value, Mapping):
            return value
        given = {key: item for key, item in value.items() if item is not None}
        taken = {f"{_ENGINE}.{key}": item for key, item in given.items() if key not in _OF_PICTURES}
        pictures = ", ".join(key for key in given if key in _OF_PICTURES)
        note = f"it is sent text alone, so {pictures} has no effect" if pictures else ""
        return Sets(taken, note=note) if taken else Unused(note or "nothing is set")

    return convert


def _if_measured(value: Any, look: Look) -> Any:
    return Unused("data.val_files names no file") if look("data.val_files", "set") in ("", [], [""]) else value


def _greedy(value: Any, look: Look) -> Any:
    if isinstance(_if_measured(value, look), Unused):
        return _if_measured(value, look)
    if value is False:
        return Sets({f"{_VALIDATION}.temperature": 0.0})
    return Unused() if value is True else value


def _validation_temperature(value: Any, look: Look) -> Any:
    return (
        Unused("do_sample is false") if look(f"{ROLLOUT}.val_kwargs.do_sample") is False else _if_measured(value, look)
    )


def _only_one(what: str, instead: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        return Unused("1 is what it is here") if value == 1 else Impossible(what, instead)

    return convert


def _spare(value: Any, look: Look) -> Any:
    return (
        Unused("it is off") if value == 0 else Impossible("responses that take long are not given up", "leave it out")
    )


_SIZE: Final = size_row(f"{ROLLOUT}.tensor_model_parallel_size", _engine)


def _on_one_machine(value: Any, look: Look) -> Any:
    most = look("trainer.n_gpus_per_node")
    if isinstance(value, int) and isinstance(most, int) and value > most:
        return Impossible("an engine is one process on one machine", f"set it to {most} or less")
    assert _SIZE.convert is not None
    return _SIZE.convert(value, look)


SAMPLER_ROWS: Final = (
    Row(f"{ROLLOUT}.name", "actor_infer.strategy_args.strategy_name", "`hf` is `hf_infer`", _name),
    Row(f"{ROLLOUT}.mode", "generate_opt_level", "`async` is 1, `sync` is 0", _mode),
    *plain(
        ROLLOUT,
        _SAMPLING,
        temperature="temperature",
        top_k="top_k",
        top_p="top_p",
        repetition_penalty="repetition_penalty",
    ),
    Row(f"{ROLLOUT}.n", "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    *plain(ROLLOUT, "", prompt_length="prompt_length", response_length="response_length"),
    Row(f"{ROLLOUT}.do_sample", note="For greedy sampling, set temperature: 0.", only=(True,)),
    Row(f"{ROLLOUT}.ignore_eos", note="A response ends at its stop token.", only=(False,)),
    dtype_row(f"{ROLLOUT}.dtype", _engine),
    replace(_SIZE, convert=_on_one_machine),
    *option_rows(
        ROLLOUT,
        _engine,
        "gpu_memory_utilization",
        "enforce_eager",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "enable_prefix_caching",
    ),
    Row(f"{ROLLOUT}.engine_kwargs.vllm", _ENGINE, "of `vllm`", _engine_options("vllm")),
    Row(f"{ROLLOUT}.engine_kwargs.sglang", _ENGINE, "of `sglang`", _engine_options("sglang")),
    *no_effect("there is no engine trtllm", f"{ROLLOUT}.engine_kwargs.trtllm"),
    *(
        Row(f"{ROLLOUT}.{name}", note="1 only", convert=_only_one(what, "raise tensor_model_parallel_size"))
        for name, what in {
            "data_parallel_size": "engines have the same weights and no devices in common",
            "expert_parallel_size": "an engine divides its matrices, experts included, and nothing else",
            "pipeline_model_parallel_size": "an engine divides its matrices and not its layers",
        }.items()
    ),
    Row(f"{ROLLOUT}.max_num_seqs", "max_running_requests"),
    Row(f"{ROLLOUT}.update_weights_bucket_megabytes", "weight_sync.bucket_mib"),
    Row(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", "weight_sync.bucket_mib"),
    *no_effect(
        "weights go from the trainer to the engine by `weight_sync.method`", f"{ROLLOUT}.checkpoint_engine.backend"
    ),
    *no_effect("weights go by `weight_sync.method`", f"{ROLLOUT}.checkpoint_engine.engine_kwargs"),
    *no_effect("the engine has its weights from the trainer", f"{ROLLOUT}.load_format", f"{ROLLOUT}.layered_summon"),
    *no_effect("the engine has its weights from the trainer", f"{ROLLOUT}.layer_name_map"),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor_train.infer_batch_size"),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size", "actor_train.infer_batch_size", "over all devices", per_device),
    *no_effect(
        "`max_tokens_per_microbatch` limits the batches that are trained and scored",
        f"{ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    ),
    *no_effect("the sampler's log-probs are always recorded", f"{ROLLOUT}.calculate_log_probs"),
    *no_effect("the engine decides when its cache is dropped", f"{ROLLOUT}.free_cache_engine"),
    *no_effect("the engine decides when its cache is dropped", f"{ROLLOUT}.multi_stage_wake_up"),
    *no_effect("the engine is given token ids and has no tokenizer", f"{ROLLOUT}.skip_tokenizer_init"),
    *no_effect("log-probs are those of the distribution that was sampled from", f"{ROLLOUT}.logprobs_mode"),
    *no_effect(
        "the metrics of an engine are those of the run",
        f"{ROLLOUT}.disable_log_stats",
        f"{ROLLOUT}.prometheus",
        f"{ROLLOUT}.profiler",
    ),
    *no_effect("requests are sampled in the order of the scheduler", f"{ROLLOUT}.scheduling_policy"),
    *no_effect("sampling noise follows from `seed` and the request", f"{ROLLOUT}.seed"),
    *no_effect("the sizes that an engine records are its own to choose", f"{ROLLOUT}.cudagraph_capture_sizes"),
    *no_effect("sampler and trainer share the devices of the run", f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node"),
    *no_effect("a row has as many pictures as it has", f"{ROLLOUT}.limit_images"),
    *no_effect("tokens that are foretold in passing are no part of the loss", f"{ROLLOUT}.mtp"),
    Row(f"{ROLLOUT}.over_sample_rate", note="0 only", convert=_spare),
    *impossible(
        "engines compute in the format of `actor_infer.model_args.dtype`",
        f"{ROLLOUT}.quantization",
        f"{ROLLOUT}.quantization_config_file",
        instead="leave it out",
    ),
    *impossible(
        "the routes of experts are not recorded and replayed",
        f"{ROLLOUT}.enable_rollout_routing_replay",
        instead="use sampler_correction against the mismatch that different routes make",
    ),
    *impossible(
        "responses of another run are not read in place of sampling",
        f"{ROLLOUT}.skip_rollout",
        f"{ROLLOUT}.skip_dump_dir",
        f"{ROLLOUT}.skip_use_default_dir",
        instead="use experience, which learns again from what was sampled",
    ),
    *no_effect(
        "every trajectory is written, and `roll view` shows it",
        f"{ROLLOUT}.trace.backend",
        f"{ROLLOUT}.trace.token2text",
        f"{ROLLOUT}.trace.max_samples_per_step_per_worker",
    ),
    *(
        Row(f"{ROLLOUT}.val_kwargs.{name}", f"{_VALIDATION}.{native}", "", _if_measured)
        for name, native in {
            "top_k": "top_k",
            "top_p": "top_p",
            "n": "num_return_sequences",
            "repetition_penalty": "repetition_penalty",
        }.items()
    ),
    Row(
        f"{ROLLOUT}.val_kwargs.temperature",
        f"{_VALIDATION}.temperature",
        "unless `do_sample` is false",
        _validation_temperature,
    ),
    Row(f"{ROLLOUT}.val_kwargs.do_sample", f"{_VALIDATION}.temperature", "false is greedy, 0", _greedy),
    *impossible(
        _NO_TURNS,
        *(
            f"{ROLLOUT}.multi_turn.{name}"
            for name in (
                "enable",
                "max_turns",
                "max_assistant_turns",
                "max_user_turns",
                "max_parallel_calls",
                "max_tool_response_length",
                "tool_response_truncate_side",
                "tool_config_path",
                "function_tool_path",
                "interaction_config_path",
                "use_inference_chat_template",
                "tokenization_sanity_check_mode",
                "completion_callback",
                "format",
                "num_repeat_rollouts",
                "enable_tokenization_sanity_check",
            )
        ),
        f"{ROLLOUT}.agent.default_agent_loop",
        f"{ROLLOUT}.agent.agent_loop_config_path",
        f"{ROLLOUT}.agent.agent_loop_manager_class",
        f"{ROLLOUT}.agent.custom_async_server",
        f"{ROLLOUT}.chat_scheduler",
        instead=_PLAY,
    ),
    *no_effect("responses are sampled by as many requests as there are", f"{ROLLOUT}.agent.num_workers"),
    *no_effect(
        "memory of the engine is its own to divide", f"{ROLLOUT}.swap_space", f"{ROLLOUT}.engine_kwargs.swap_space"
    ),
)
"""The keys of sampling."""
