"""ChatLearn: the names of its sections, and what conversions ask of a configuration."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.placement import Placement
from roll.config.dialects.rows import Look, Sets, Unused, above_zero

RUN: Final = "runtime_args"
TRAINER: Final = "models.policy_trainer"
REFERENCE: Final = "models.ref_policy"
POLICY: Final = "models.policy"
REWARD: Final = "models.reward"
MANAGER: Final = "models.rollout_manager"
RESPONSES: Final = f"{POLICY}.num_inference_per_prompt"

DEVICES: Final = "devices belong to the role, `device_mapping`"
_MACHINE: Final = 8


def has_reference(look: Look) -> bool:
    """Tell whether there is a reference: a term uses it, or the section of its model says what it is."""
    used = above_zero(look(f"{TRAINER}.kl_coef")) or look.kl_loss or look.kl_reward
    return used or look(f"{REFERENCE}.load") is not None


def trains_with_megatron(look: Look) -> bool:
    """Tell whether Megatron holds the models."""
    native = look.native("actor_train.strategy_args.strategy_name")
    return str(look(f"{RUN}.train_backend", native)).startswith("megatron")


def responses(look: Look) -> int:
    """Return the responses to a prompt: of the sampler, else of the run."""
    key = RESPONSES if look(RESPONSES) is not None else f"{RUN}.num_inference_per_prompt"
    return look.responses(key)


def shared_devices(value: Any, look: Look) -> Any:
    """Convert the devices of the trainer, which is where those of all roles are counted.

    Raises:
        FixableError: It is no number, or there are more than a run can have.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    together = look(f"{RUN}.colocation")
    listed = together if isinstance(together, list) else []
    names = [name for each in listed for name in (each if isinstance(each, list) else [each])]
    sampler = look(f"{POLICY}.num_gpu", value)
    counts = {"actor_train": value, "actor_infer": sampler}
    if has_reference(look):
        counts["reference"] = look(f"{REFERENCE}.num_gpu", value)
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts.values()):
        return Unused("the devices of a role are no number")
    share = "policy" in names and "policy_trainer" in names
    total = max(counts.values()) if share else sum(counts.values())
    machines = (total // _MACHINE, _MACHINE) if total % _MACHINE == 0 and total else (1, max(1, total))
    placement = Placement(*machines)
    sets = placement.together(*counts) if share else placement.apart(counts)
    if "reference" not in counts or total == 1:
        return sets
    name = "megatron_infer" if trains_with_megatron(look) else "fsdp_infer"
    return Sets(sets.values, {**sets.fills, "reference.strategy_args.strategy_name": name}, sets.note)
