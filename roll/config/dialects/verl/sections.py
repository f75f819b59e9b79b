"""verl: the names of its sections, and what conversions ask of a configuration."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import Look, whole
from roll.config.errors import FixableError

ACTOR: Final = "actor_rollout_ref.actor"
MODEL: Final = "actor_rollout_ref.model"
REFERENCE: Final = "actor_rollout_ref.ref"
ROLLOUT: Final = "actor_rollout_ref.rollout"
CRITIC: Final = "critic"
REWARD: Final = "reward_model"

DTYPES: Final = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""Number formats, which verl calls by PyTorch's names."""


def has_reference(look: Look) -> bool:
    """Tell whether a term uses the divergence from a reference that is a model of its own."""
    if look(f"{MODEL}.lora_rank") or look(f"{MODEL}.lora.rank"):
        return False  # it is the policy with its adapters switched off
    asked = look(f"{ACTOR}.use_kl_loss") is True or look("algorithm.use_kl_in_reward") is True
    return asked or look.kl_loss or look.kl_reward


def has_critic(look: Look) -> bool:
    """Tell whether advantages need a critic."""
    return look("algorithm.adv_estimator", look.native("adv_estimator")) == "gae"


def has_reward_model(look: Look) -> bool:
    """Tell whether a reward model scores responses."""
    return look(f"{REWARD}.enable") is True


def trains_with_megatron(look: Look) -> bool:
    """Tell whether Megatron holds the models: it is named, or has options and no other trainer is named."""
    native = look.native("actor_train.strategy_args.strategy_name")
    named = look(f"{ACTOR}.strategy", look("model_engine", native))
    if named is not None:
        return str(named).startswith("megatron")
    return look.has(f"{ACTOR}.megatron")


def devices(look: Look) -> int | None:
    """Return the devices of the run, ``None`` where they are not counted."""
    sizes: list[Any] = [look("trainer.nnodes", 1), look("trainer.n_gpus_per_node")]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        return None
    return int(sizes[0] * sizes[1])


def per_device(value: Any, look: Look) -> int:
    """Return the share of one device of a size that counts for all.

    Raises:
        FixableError: Nothing says how many there are, or it is no size.
    """
    count = devices(look)
    if count is None:
        raise FixableError("it is shared by all devices, and nothing says how many.", "set trainer.n_gpus_per_node.")
    return max(1, whole(value, "the size") // count)
