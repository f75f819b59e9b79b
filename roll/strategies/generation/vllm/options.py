"""The keys of ``strategy_config``, checked against the arguments of vLLM's own engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.strategies.generation.engine_options import DTYPES, EngineArguments
from roll.strategies.generation.vllm.description import VLLM
from roll.strategies.generation.vllm.errors import VllmNotInstalledError

WORKER_EXTENSION: Final = "roll.strategies.generation.vllm.worker.WorkerExtension"

OWNED: Final[Mapping[str, str]] = {
    "model": "it is the policy that is trained: set pretrain or actor_infer.model_args.model_name_or_path.",
    "model_weights": "the weights come from the policy that is trained: set pretrain.",
    "tokenizer": "the engine is given token ids and has no tokenizer: leave the key out.",
    "skip_tokenizer_init": "the engine is given token ids and has no tokenizer: leave the key out.",
    "dtype": "set actor_infer.model_args.dtype.",
    "seed": "sampling noise is keyed by request; set the run's seed.",
    "max_num_seqs": "set max_running_requests.",
    "logprobs_mode": "training needs log-probs of the distribution that was drawn from: leave the key out.",
    "generation_config": "sampling is what generating_args says, never what the model's folder says: leave it out.",
    "override_generation_config": "set actor_infer.generating_args.",
    "worker_extension_cls": "weights arrive through an extension of roll's own: leave the key out.",
    "tokens_only": "the engine is given token ids and gives ids back in any case: leave the key out.",
    "stream_interval": "completions are taken whole: leave the key out.",
    "weight_transfer_config": "weights travel by roll's own weight sync: leave the key out.",
    "max_logprobs": "it follows from teacher_top_k: leave the key out.",
    "disable_log_stats": "roll's own metrics replace vLLM's: leave the key out.",
}
"""Engine arguments that follow from the rest of a configuration, and where to set them."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes and types that the rest of a configuration decides.

    Attributes:
        model: Folder of the model, in Hugging Face format.
        max_slots: Most sequences that run at once.
        max_length: Most tokens of a sequence, prompt and completion.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        seed: Of the engine's own random numbers; requests carry seeds of their own.
        most_named: Most tokens that are named at a place of given tokens; ``None``: none are scored.
    """

    model: str
    max_slots: int
    max_length: int
    dtype: str
    seed: int = 0
    most_named: int | None = None

    @property
    def context(self) -> int:
        """Tokens for which the engine needs room: it reads given tokens only where one more could be sampled."""
        return self.max_length + (self.most_named is not None)


def engine_argument_names() -> list[str]:
    """Return the names of all arguments that the installed vLLM's engine takes.

    Raises:
        VllmNotInstalledError: If vLLM cannot be imported.
    """
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError as error:
        raise VllmNotInstalledError(error) from error
    return [field.name for field in dataclasses.fields(AsyncEngineArgs) if not field.name.startswith("_")]


check_options: Final = EngineArguments(
    "vLLM", "vllm.engine.arg_utils.AsyncEngineArgs", OWNED, "max_model_len", engine_argument_names
).check


def engine_arguments(limits: EngineLimits, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``AsyncEngineArgs``: roll's defaults, then ``options``, then what roll decides."""
    # In a worker of Ray vLLM would start these through Ray, though the worker has the devices of the engine already.
    divided = {"distributed_executor_backend": "mp"} if VLLM.parts(options) > 1 else {}
    return {
        **divided,
        "max_model_len": limits.context,
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "log_level": "WARNING",
        **options,
        "model": limits.model,
        "skip_tokenizer_init": True,
        "dtype": DTYPES[limits.dtype],
        "seed": limits.seed,
        "max_num_seqs": limits.max_slots,
        # Of tokens that are given the two modes are one: nothing is processed there.
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": max(1, limits.most_named or 0),
        "generation_config": "vllm",
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
    }
