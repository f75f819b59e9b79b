"""What guides say of a generation engine: in vLLM's words, for which SGLang has others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from roll.config.dialects.rows import GENERATION_STRATEGIES, Look, Row, Sets, Unused

_ENGINE: Final = "actor_infer.strategy_args.strategy_config"

_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "gpu_memory_utilization": {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"},
    "enforce_eager": {"vllm": "enforce_eager", "sglang": "disable_cuda_graph"},
    "max_num_batched_tokens": {"vllm": "max_num_batched_tokens"},
    "max_model_len": {"vllm": "max_model_len", "sglang": "context_length"},
    "enable_chunked_prefill": {"vllm": "enable_chunked_prefill"},
    "enable_prefix_caching": {"vllm": "enable_prefix_caching"},
}
"""Options of engines by the guides' word, in the words of each."""

DTYPES: Final = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}

_NO_ENGINE: Final = Unused("an option of vllm and sglang, and the run asks for neither")

Engine = Callable[[Look], str | None]
"""Returns the engine that a configuration asks for, ``None`` for none of vllm and sglang."""


def engine_at(key: str) -> Engine:
    """Return what reads the engine at a key of a guide."""

    def engine(look: Look) -> str | None:
        name = look(key)
        native = GENERATION_STRATEGIES.get(name, name) if isinstance(name, str) else None
        return native if native in ("vllm", "sglang") else None

    return engine


def option_rows(section: str, engine: Engine, *names: str) -> tuple[Row, ...]:
    """Return rows of options that an engine takes as they are, under its own name.

    Args:
        section: The guide's section.
        engine: Which engine it is.
        names: The guide's words.
    """
    return tuple(
        Row(
            f"{section}.{name}",
            tuple(f"{_ENGINE}.{word}" for word in _WORDS[name].values()),
            f"of {' and '.join(f'`{each}`' for each in _WORDS[name])}",
            _option(name, engine),
        )
        for name in names
    )


def size_row(key: str, engine: Engine) -> Row:
    """Return the row of a tensor-parallel size: here it is the devices of one engine."""

    def convert(value: Any, look: Look) -> Any:
        if engine(look) is None:
            return Unused() if value == 1 else _NO_ENGINE
        return value

    note = "of `vllm` and `sglang`; counts where `actor_infer.device_mapping` is set"
    return Row(key, "actor_infer.num_gpus_per_worker", note, convert)


def dtype_row(key: str, engine: Engine) -> Row:
    """Return the row of the format of an engine's numbers."""

    def convert(value: Any, look: Look) -> Any:
        if engine(look) is None:
            return _NO_ENGINE
        return DTYPES.get(value, value) if isinstance(value, str) else value

    return Row(key, "actor_infer.model_args.dtype", "of `vllm` and `sglang`", convert)


def _option(name: str, engine: Engine) -> Callable[[Any, Look], Any]:
    def convert(value: Any, look: Look) -> Any:
        asked = engine(look)
        if asked is None:
            return _NO_ENGINE
        word = _WORDS[name].get(asked)
        return Unused(f"{asked} has no such option") if word is None else Sets({f"{_ENGINE}.{word}": value})

    return convert
