"""The keys of ``strategy_config``, checked against the arguments of SGLang's own engine."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from roll.strategies.engine_options import DTYPES, EngineArguments
from roll.strategies.sglang.errors import SglangNotInstalledError

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


check_options: Final = EngineArguments(
    "SGLang", "sglang.srt.server_args.ServerArgs", OWNED, "context_length", engine_argument_names
).check


def engine_arguments(
    model: str, *, max_slots: int, max_length: int, dtype: str, seed: int, version: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``Engine``: roll's defaults, then ``options``, then what roll decides."""
    return {
        # SGLang refuses a prompt and completion that fill the context to the last token.
        "context_length": max_length + 1,
        "log_level": "error",
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
