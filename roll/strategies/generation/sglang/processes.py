"""What SGLang's scheduler processes begin with."""

from __future__ import annotations

from typing import Any


def run_scheduler(*arguments: Any, **named: Any) -> None:
    """Run SGLang's scheduler for a model that is said to have no end tokens of its own.

    SGLang looks for a request's stop tokens and for the model's in one place: told to ignore the model's
    (``ignore_eos``), it ignores the request's too. What ends a completion is in the request.

    Raises:
        RuntimeError: If this release of SGLang asks for the model's end tokens in another way.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.scheduler import run_scheduler_process

    if not hasattr(ModelConfig, "_get_hf_eos_token_id"):
        raise RuntimeError("sglang: ModelConfig._get_hf_eos_token_id is gone; use the release that roll is tested with")
    ModelConfig._get_hf_eos_token_id = _no_tokens
    run_scheduler_process(*arguments, **named)


def _no_tokens(model_config: object) -> set[int]:
    return set()
