"""Trinity-RFT: ``explorer`` and ``synchronizer``: what samples, and how it has its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from roll.config.dialects.engines import DTYPES, dtype_row, option_rows, size_row
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    choices,
    no_effect,
    under,
    whole,
)
from roll.config.dialects.trinity.rewards import JUDGE, asks_a_judge
from roll.config.dialects.trinity.sections import (
    ALGO,
    DATA,
    ROLLOUT,
    SAMPLING,
    VLLM,
    distils,
    engine,
    first_of,
    only_sampling,
    samples,
    through_cluster,
    two_programs,
)
from roll.config.errors import FixableError

_STYLES: Final = {
    "fixed": "fixed",
    "dynamic_by_explorer": "dynamic_by_explorer",
    "explorer_driven": "dynamic_by_explorer",
    "dynamic_by_trainer": "dynamic_by_trainer",
    "trainer_driven": "dynamic_by_trainer",
}
_SYNC: Final = "experience.sync"
_METHODS: Final = {"nccl": "auto", "checkpoint": "checkpoint", "memory": "auto"}
_RUNNERS: Final = "episodes are scheduled by `max_running_requests` and the env managers"


def _with_engine(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return rows of engine options that name the engine too, where nothing else does."""
    return tuple(_named(row) for row in rows)


def _named(row: Row) -> Row:
    inner = row.convert
    assert inner is not None

    def convert(value: Any, look: Look) -> Any:
        if not samples(look):
            return Unused("nothing is sampled")
        outcome = inner(value, look)
        fills = {} if look(f"{ROLLOUT}.engine_type") is not None else VLLM
        if isinstance(outcome, Sets):
            return Sets(outcome.values, {**outcome.fills, **fills}, outcome.note)
        return outcome if isinstance(outcome, Unused) else Sets(dict.fromkeys(row.targets, outcome), fills)

    return Row(row.key, row.native, row.note, convert)


def _at_once(value: Any, look: Look) -> Any:
    if not samples(look):
        return Unused("nothing is sampled")
    return whole(value, "the number") * look.responses(f"{ALGO}.repeat_times")


def _as_the_model(name: str) -> Callable[[Any, Look], bool]:
    return lambda value, look: bool(value == look(f"model.{name}"))


def _goes_on_without_slow_tasks(look: Look) -> bool:
    return look("explorer.over_rollout.ratio", 0) != 0


def _explores(look: Look) -> bool:
    return samples(look) and look("mode") != "train"


def _spare(value: Any, look: Look) -> Any:
    if not _explores(look):
        return Unused("nothing is sampled")
    if not _goes_on_without_slow_tasks(look):
        return Unused()
    note = "a step begins batch_size / (1 - ratio) tasks, and learns from batch_size of them"
    return Sets({_LATE: value}, note=note)


def _wait_for_slow_tasks(value: Any, look: Look) -> Any:
    if not _explores(look):
        return Unused("nothing is sampled")
    return value if _goes_on_without_slow_tasks(look) else Unused()


def _whole_tasks(value: Any, look: Look) -> Any:
    if value is False or not _explores(look) or not _goes_on_without_slow_tasks(look):
        return Unused()
    return Impossible("a group that is late is given up whole, for its members are compared", "set it to false")


def _auxiliary(value: Any, look: Look) -> Any:
    """Convert the models beside the policy: a teacher, or a judge behind a server."""
    if not value:
        return Unused()
    first = first_of(value)
    if not first:
        raise FixableError("must be a list of sections.", "write [{model_path: some/model}].")
    path = first.get("model_path")
    if distils(look):
        return Sets({"teacher.model_args.model_name_or_path": path}) if path else Unused("it names no model")
    if asks_a_judge(look):
        return _judge(first, len(value) if isinstance(value, list) else 1)
    reason = "a model beside the policy is asked by nothing but a judge"
    return Impossible(reason, "the verifier llm_judge, with the base_url of its server")


def _judge(model: Mapping[str, Any], models: int) -> Sets:
    """Return the judge that an auxiliary model is."""
    strategy = model.get("engine_type") or "vllm"
    names = {
        "model_path": "model_args.model_name_or_path",
        "tensor_parallel_size": "num_gpus_per_worker",
        "max_model_len": "sequence_length",
        "max_response_tokens": "generating_args.max_new_tokens",
        "temperature": "generating_args.temperature",
        "enable_thinking": "data_args.enable_thinking",
    }
    said = {f"{_JUDGE}.{native}": model[key] for key, native in names.items() if model.get(key) is not None}
    said |= {
        f"{_JUDGE}.strategy_args.strategy_name": GENERATION_STRATEGIES.get(strategy, strategy),
        f"{_JUDGE}.model_args.dtype": DTYPES.get(model.get("dtype", "bfloat16"), "bf16"),
    }
    return Sets(said, note="the first of them is the judge" if models > 1 else "")


_JUDGE: Final = f"judges.{JUDGE}"


def _only_one(value: Any, look: Look) -> Any:
    return Unused() if value == 1 else Impossible("an engine divides its matrices", "raise tensor_parallel_size")


def _between(native: str, alone: str) -> Any:
    """Convert a key of how weights are handed over: between two programs, or in one."""

    def convert(value: Any, look: Look) -> Any:
        if not samples(look):
            return Unused("nothing is sampled")
        return Sets({f"{_SYNC}.{native}" if two_programs(look) else alone: value})

    return convert


def _offset(value: Any, look: Look) -> Any:
    if two_programs(look) and samples(look):
        fixed = _STYLES.get(look("synchronizer.sync_style", "fixed")) == "fixed"
        return Sets({f"{_SYNC}.offset": value}) if fixed else Unused("only the style fixed has an offset")
    if value == 0:
        return Unused()
    return Sets({"async_generation_ratio": float(value) if isinstance(value, int) else value})


def _style(value: Any, look: Look) -> Any:
    if not isinstance(value, str) or value not in _STYLES:
        raise FixableError("there is no such style.", f"use {', '.join(_STYLES)}.")
    if two_programs(look) and samples(look):
        return Sets({f"{_SYNC}.style": _STYLES[value]})
    if value == "fixed" or not samples(look):
        return Unused()
    if look("buffer.trainer_input.experience_buffer.replay_buffer.enable") is True:
        return Unused("a run that replays samples in step with training")
    if _goes_on_without_slow_tasks(look):
        return Unused("a run that goes on without slow tasks samples in step with training")
    note = "who samples runs ahead of who trains, by a step at most; other limits are other values of the key"
    return Sets(fills={"async_generation_ratio": 1.0}, note=note)


def _method(value: Any, look: Look) -> Any:
    if not isinstance(value, str) or value not in _METHODS:
        raise FixableError("there is no such method.", f"use {', '.join(_METHODS)}.")
    if not samples(look):
        return Unused("nothing is sampled")
    if two_programs(look):
        if through_cluster(look):
            fills = {"experience.type": "ray", "experience.name": look("name") or "experience"}
            return Sets({f"{_SYNC}.method": value}, fills, "both programs join one Ray cluster (RAY_ADDRESS)")
        if value == "checkpoint":
            return Unused()
        return Unused("with a store in a database, weights are handed over by checkpoints: experience.follow")
    if value == "checkpoint":
        return Unused("weights are handed over by the strategy")
    return Sets({"weight_sync.method": _METHODS[value]})


_METHOD: Final = "weight_sync.method"
_LATE: Final = "over_rollout.ratio"

EXPLORER_ROWS: Final = (
    Row("explorer.eval_interval", "eval_steps"),
    Row("explorer.eval_on_startup", "eval_at_start"),
    Row(
        f"{ROLLOUT}.engine_type",
        "actor_infer.strategy_args.strategy_name",
        "`vllm_async` is `vllm`",
        choices(GENERATION_STRATEGIES),
    ),
    *_with_engine(
        (
            size_row(f"{ROLLOUT}.tensor_parallel_size", engine),
            *option_rows(
                ROLLOUT,
                engine,
                "gpu_memory_utilization",
                "enforce_eager",
                "enable_prefix_caching",
                "enable_chunked_prefill",
                "max_model_len",
            ),
            dtype_row(f"{ROLLOUT}.dtype", engine),
        )
    ),
    agreeing(
        f"{ROLLOUT}.engine_num",
        "actor_infer.device_mapping",
        "cluster.gpu_per_node counts the devices",
        lambda value, look: look("cluster.gpu_per_node") is not None,
    ),
    Row(f"{ROLLOUT}.seed", "seed", "noise follows from that of the run"),
    Row(f"{ROLLOUT}.enable_thinking", f"{DATA}.enable_thinking"),
    Row(f"{ROLLOUT}.chat_template", f"{DATA}.template"),
    *(Row(f"{ROLLOUT}.{name}", f"{SAMPLING}.{name}") for name in ("repetition_penalty",)),
    *(
        agreeing(f"{ROLLOUT}.{name}", native, f"model.{name} says it", _as_the_model(name))
        for name, native in (
            ("max_prompt_tokens", "prompt_length"),
            ("max_response_tokens", "response_length"),
            ("min_response_tokens", SAMPLING),
            ("temperature", f"{SAMPLING}.temperature"),
        )
    ),
    *(
        Row(f"{ROLLOUT}.{name}", note="1 only", convert=_only_one, agrees="actor_infer.num_gpus_per_worker")
        for name in ("data_parallel_size", "pipeline_parallel_size")
    ),
    *no_effect("every trajectory is kept whole", f"{ROLLOUT}.enable_history"),
    *no_effect(
        "a workflow asks the engine itself, and not over a port",
        *(
            f"{ROLLOUT}.{name}"
            for name in ("enable_openai_api", "enable_log_requests", "base_port", "api_key", "external_model_config")
        ),
    ),
    *no_effect(
        "calls of tools are read as the chat template writes them",
        *(f"{ROLLOUT}.{name}" for name in ("enable_auto_tool_choice", "tool_call_parser", "reasoning_parser")),
    ),
    *no_effect(
        "the engine decides it",
        *(
            f"{ROLLOUT}.{name}"
            for name in (
                "use_v1",
                "trust_remote_code",
                "name",
                "model_path",
                "extra_engine_args",
                "enable_expert_parallel",
                "enable_prompt_truncation",
                "enable_multimodal",
                "weight_sync_buffer_size",
                "nnodes",
                "bundle_indices",
            )
        ),
    ),
    Row(f"{ROLLOUT}.ignore_eos", note="A response ends at its stop token.", only=(False,), agrees=SAMPLING),
    Row("explorer.runner_per_model", "max_running_requests", "times `repeat_times`", _at_once),
    Row("explorer.max_timeout", "generation_timeout", "", only_sampling),
    Row("explorer.max_retry_times", "max_retry_times", "", only_sampling),
    *no_effect(
        _RUNNERS,
        *(
            f"explorer.{name}"
            for name in (
                "name",
                "runner_num",
                "max_repeat_times_per_runner",
                "env_vars",
                "runner_state_report_interval",
                "runner_prepare_concurrency",
                "runner_prepare_max_retries",
                "concurrent_mode",
                "max_inflight_batches",
                "dynamic_timeout",
            )
        ),
    ),
    *no_effect(
        "policies are served by roll serve",
        *(
            f"explorer.{name}"
            for name in (
                "proxy_port",
                "listen_address",
                "service_status_check_interval",
                "min_running_model_num",
                "db_url",
            )
        ),
    ),
    *no_effect("mode: bench evaluates every checkpoint", "explorer.bench_on_latest_checkpoint"),
    Row("explorer.over_rollout.ratio", _LATE, "more tasks are begun, and as many learned from", _spare),
    Row("explorer.over_rollout.wait_after_min", "over_rollout.wait_after_min", "", _wait_for_slow_tasks),
    Row("explorer.over_rollout.return_partial_tasks", note="`false` only", convert=_whole_tasks, agrees=_LATE),
    Row("explorer.auxiliary_models", note="a teacher, or a judge", convert=_auxiliary),
    Row(
        "synchronizer.sync_interval",
        "actor_infer.model_update_frequency",
        f"of two programs: `{_SYNC}.interval`",
        _between("interval", "actor_infer.model_update_frequency"),
    ),
    Row(
        "synchronizer.sync_offset", "async_generation_ratio", f"steps ahead; of two programs: `{_SYNC}.offset`", _offset
    ),
    Row(
        "synchronizer.sync_style",
        "async_generation_ratio",
        f"1 of all but `fixed`; of two programs: `{_SYNC}.style`",
        _style,
    ),
    Row(
        "synchronizer.sync_method",
        _METHOD,
        f"`nccl`, `memory`; of two programs: `checkpoint`, or `{_SYNC}.method` with a store of `experience.type: ray`",
        _method,
        agrees="experience.follow",
    ),
    Row(
        "synchronizer.sync_timeout",
        "weight_sync.timeout",
        f"of two programs: `{_SYNC}.timeout`",
        _between("timeout", "weight_sync.timeout"),
    ),
    *(
        agreeing(
            f"synchronizer.{name}",
            "experience.sync.interval",
            "trainer and explorer hand over at the same steps",
            lambda value, look: value == look("synchronizer.sync_interval", 1),
        )
        for name in ("explorer_sync_interval", "trainer_sync_interval")
    ),
    *no_effect(
        "trainer and explorer hand over at the same steps",
        *under("synchronizer", "wait_for_checkpoint", "group_name"),
    ),
    *no_effect(
        "the engine is told what the model is",
        *under(
            ROLLOUT,
            *("gpu_per_engine", "top_p", "top_k", "logprobs", "node_rank", "enable_return_routed_experts"),
            *("rope_scaling", "rope_theta", "enable_lora", "lora_modules"),
        ),
    ),
)
"""The keys of what samples."""
