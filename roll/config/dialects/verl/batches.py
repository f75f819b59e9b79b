"""verl: how its batch sizes and the parts of a sequence become ours, the same for actor and critic."""

from __future__ import annotations

from typing import Any

from roll.config.dialects.rows import (
    Look,
    Sets,
    Unused,
    share,
)
from roll.config.dialects.verl.sections import ACTOR, ROLLOUT, trains_with_megatron


def mini_batches(value: Any, look: Look) -> int:
    """Return into how many mini-batches the prompts of a step are cut."""
    return share(look.prompts("data.train_batch_size", f"{ROLLOUT}.n"), value, "prompts")


def _is_dynamic(role: str, look: Look) -> bool:
    """Tell whether batches are built by length: the critic does as the actor, unless it says otherwise."""
    return look(f"{role}.use_dynamic_bsz", look(f"{ACTOR}.use_dynamic_bsz")) is True


def token_budget(role: str) -> Any:
    """Convert the tokens of a pass, which count where batches are built by length."""

    def convert(value: Any, look: Look) -> Any:
        return value if _is_dynamic(role, look) else Unused(f"{role}.use_dynamic_bsz is not true")

    return convert


def dynamic_batch(role: str, target: str, budget: int) -> Any:
    """Convert the switch of batches by length, with the ``budget`` of tokens that they have unless another is set."""

    def convert(value: Any, look: Look) -> Any:
        if value is True and look(f"{role}.ppo_max_token_len_per_gpu") is None:
            return Sets(fills={f"{target}.max_tokens_per_microbatch": budget})
        return Unused()

    return convert


def ulysses(role: str) -> Any:
    """Convert the number of ranks among which FSDP cuts sequences."""

    def convert(value: Any, look: Look) -> Any:
        if trains_with_megatron(look):
            return Unused("Megatron holds the model")
        return Sets(
            {f"{role}.strategy_args.strategy_config.ulysses_size": value},
            {f"{role}.strategy_args.strategy_name": "fsdp_train"},
        )

    return convert
