"""What SGLang's scheduler processes begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_WHILE_PAUSED: Final = "_record_scheduler_state_for_paused_engine"
"""What a paused scheduler calls each time that it has looked for messages."""


def run_scheduler(*arguments: Any, **named: Any) -> None:
    """Run SGLang's scheduler for a model that is said to have no end tokens of its own.

    SGLang looks for a request's stop tokens and for the model's in one place: told to ignore the model's
    (``ignore_eos``), it ignores the request's too. What ends a completion is in the request.

    While it is paused it waits for its next message, as when it is idle (``sleep_on_idle``). SGLang's own looks for one
    all the time, and takes a whole core from the trainer for which it was paused.

    Raises:
        RuntimeError: If this release of SGLang asks for the model's end tokens in another way.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process

    if not hasattr(ModelConfig, "_get_hf_eos_token_id"):
        raise RuntimeError("sglang: ModelConfig._get_hf_eos_token_id is gone; use the release that roll is tested with")
    ModelConfig._get_hf_eos_token_id = _no_tokens
    if hasattr(Scheduler, _WHILE_PAUSED):
        setattr(Scheduler, _WHILE_PAUSED, _and_wait(getattr(Scheduler, _WHILE_PAUSED)))
    run_scheduler_process(*arguments, **named)


def _and_wait(looks: Callable[[Any], None]) -> Callable[[Any], None]:
    def look_and_wait(scheduler: Any) -> None:
        looks(scheduler)
        scheduler.maybe_sleep_on_idle()

    return look_and_wait


def _no_tokens(model_config: object) -> set[int]:
    return set()
