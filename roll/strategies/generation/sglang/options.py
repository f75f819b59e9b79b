"""The keys of ``strategy_config``, checked against the arguments of SGLang's own engine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import AutoConfig

from roll.strategies.generation.engine_options import DTYPES, EngineArguments
from roll.strategies.generation.sglang.errors import SglangNotInstalledError

_MARGIN: Final = 6
"""Tokens at the end of its context that SGLang never gives a prompt and completion."""

OWNED: Final[Mapping[str, str]] = {
    "model_path": "it is the policy that is trained: set pretrain or actor_infer.model_args.model_name_or_path.",
    "tokenizer_path": "the engine is given token ids and has no tokenizer: leave the key out.",
    "skip_tokenizer_init": "the engine is given token ids and has no tokenizer: leave the key out.",
    "tokenizer_worker_num": "one process must know all requests to freeze them: leave the key out.",
    "dtype": "set actor_infer.model_args.dtype.",
    "random_seed": "set the run's seed.",
    "max_running_requests": "set the run's max_running_requests.",
    "weight_version": "the policy version is roll's to count: leave the key out.",
    "enable_priority_scheduling": "roll asks for it, smaller first: leave the key out.",
    "schedule_low_priority_values_first": "roll asks for it: leave the key out.",
    "custom_sigquit_handler": "roll watches the engine's processes itself: leave the key out.",
    "dp_size": "weights cannot be updated in data-parallel replicas: give actor_infer more workers instead.",
}
"""Engine arguments that follow from the rest of a configuration, and where to set them."""


def engine_argument_names() -> list[str]:
    """Return the names of all arguments that the installed SGLang's engine takes.

    Raises:
        SglangNotInstalledError: If SGLang cannot be imported.
    """
    try:
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        raise SglangNotInstalledError(error) from error
    return list(inspect.signature(ServerArgs).parameters)


_ARGUMENTS: Final = EngineArguments(
    "SGLang", "sglang.srt.server_args.ServerArgs", OWNED, "context_length", engine_argument_names
)


def check_options(options: Mapping[str, Any] | None, **how: Any) -> dict[str, Any]:
    """Return a ``strategy_config`` as :meth:`roll.strategies.generation.engine_options.EngineArguments.check` does."""
    if runs_on_cpu(options or {}):
        # SGLang reads it when it is imported.
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    return _ARGUMENTS.check(options, **how)


def runs_on_cpu(options: Mapping[str, Any]) -> bool:
    """Return whether an engine with these options runs on CPUs: it is told to, or there is nothing else."""
    device = options.get("device")
    return device == "cpu" or (device is None and not torch.accelerator.is_available())


def cpu_defaults(max_slots: int, max_length: int) -> dict[str, Any]:
    """Return engine arguments that a CPU needs where ``strategy_config`` says nothing."""
    return {
        "device": "cpu",
        # A cache for all slots at full length, but at most half of the memory that is free: SGLang would take nearly
        # all memory of the machine.
        "max_total_tokens": max_slots * (max_length + _MARGIN),
        "mem_fraction_static": 0.5,
        # Both are about keeping a GPU busy.
        "disable_overlap_schedule": True,
        "skip_server_warmup": True,
        # Else it looks for requests all the time, with a core that trainer and environments need.
        "sleep_on_idle": True,
    }


def allow_margin(model: str, max_length: int, context: int) -> None:
    """Let SGLang's context be longer than the model's, where the run's sequences are not but :data:`_MARGIN` is.

    Args:
        model: Folder of the model, or its name on a hub.
        max_length: Most tokens of a sequence that the model reads.
        context: Tokens for which SGLang needs room, without the margin.
    """
    positions = getattr(AutoConfig.from_pretrained(model).get_text_config(), "max_position_embeddings", None)
    if positions is not None and max_length <= positions < context + _MARGIN:
        os.environ.setdefault("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")


def engine_arguments(
    model: str, *, max_slots: int, max_length: int, dtype: str, seed: int, version: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``Engine``: roll's defaults, then ``options``, then what roll decides."""
    return {
        "context_length": max_length + _MARGIN,
        "log_level": "error",
        **(cpu_defaults(max_slots, max_length) if runs_on_cpu(options) else {}),
        **options,
        "model_path": model,
        "skip_tokenizer_init": True,
        "dtype": DTYPES[dtype],
        "max_running_requests": max_slots,
        "random_seed": seed,
        "weight_version": str(version),
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": True,
    }
