"""The names of the engines, what each can do, and what is missing for those that this version does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec

from roll.config.errors import ConfigError, Problem, choose_from


class Ability(StrEnum):
    """What an engine is for."""

    TRAIN = "train"
    GENERATE = "generate"
    SCORE = "score"
    """Forward passes only: log-probs of a reference model, values, rewards."""


@dataclass(frozen=True, slots=True)
class StrategyInfo:
    """What is known of a strategy before any engine is imported.

    Attributes:
        abilities: What it is for.
        available: Whether this version can run it.
        spans_processes: Whether the workers of a role hold one model together, which takes a process for each.
        package: The module that it needs beyond this project's own, ``:`` and the extra that installs it, where that is
            called otherwise.
        missing: What is missing, for those that cannot run.
        instead: The strategy to use meanwhile.
    """

    abilities: frozenset[Ability]
    available: bool = False
    spans_processes: bool = False
    package: str = ""
    missing: str = ""
    instead: str = ""


_SCORE_AND_TRAIN = frozenset({Ability.TRAIN, Ability.SCORE})
_SCORE = frozenset({Ability.SCORE})
_GENERATE = frozenset({Ability.GENERATE})

STRATEGIES: Mapping[str, StrategyInfo] = {
    "hf_infer": StrategyInfo(frozenset({Ability.GENERATE, Ability.SCORE}), available=True),
    "vllm": StrategyInfo(_GENERATE, True, package="vllm", instead="hf_infer"),
    "sglang": StrategyInfo(_GENERATE, True, package="sglang", instead="hf_infer"),
    "fsdp_train": StrategyInfo(_SCORE_AND_TRAIN, available=True, spans_processes=True),
    "fsdp_infer": StrategyInfo(_SCORE, available=True, spans_processes=True),
    "deepspeed_train": StrategyInfo(_SCORE_AND_TRAIN, True, spans_processes=True, package="deepspeed"),
    "deepspeed_infer": StrategyInfo(_SCORE, True, spans_processes=True, package="deepspeed"),
    "megatron_train": StrategyInfo(_SCORE_AND_TRAIN, True, spans_processes=True, package="megatron.core:megatron"),
    "megatron_infer": StrategyInfo(_SCORE, True, spans_processes=True, package="megatron.core:megatron"),
}
"""Every strategy name that a configuration may use."""

ROLE_ABILITY: Mapping[str, Ability] = {
    "actor_train": Ability.TRAIN,
    "critic": Ability.TRAIN,
    "actor_infer": Ability.GENERATE,
    "reference": Ability.SCORE,
    "reward": Ability.SCORE,
}
"""What the engine of a role must be able to do."""


def strategies_for(role: str) -> list[str]:
    """Return the strategy names that can serve ``role``."""
    return [name for name, info in STRATEGIES.items() if ROLE_ABILITY[role] in info.abilities]


def availability_problem(name: str, *, role: str, world_size: int = 1, cluster: str = "ray") -> Problem | None:
    """Return what stands in the way of running strategy ``name`` in ``role``, or ``None``.

    Args:
        name: A strategy name.
        role: ``actor_train``, ``actor_infer``, ``reference``, ``critic`` or ``reward``.
        world_size: Number of workers of the role.
        cluster: ``local`` or ``ray``.
    """
    path = f"{role}.strategy_args.strategy_name"
    info = STRATEGIES.get(name)
    if info is None:
        return Problem(path, "no strategy has this name.", choose_from(name, STRATEGIES), name)
    if ROLE_ABILITY[role] not in info.abilities:
        usable = strategies_for(role)
        return Problem(path, f"this strategy cannot serve {role}.", f"use one of {', '.join(usable)}.", name)
    if not info.available:
        message = f"the name is valid, but this version of roll cannot run it yet: {info.missing} is missing."
        return Problem(path, message, f"set {path}={info.instead}.", name)
    module, _, extra = info.package.partition(":")
    if module and not _is_installed(module):
        on_cpus = " (on a machine without GPUs: make vllm)" if module == "vllm" else ""
        fix = f"pip install 'roll[{extra or module}]'{on_cpus}, or set {path}={info.instead or 'fsdp_train'}."
        return Problem(path, f"it needs the Python package {module}, which is not installed.", fix, name)
    if cluster == "local" and world_size > 1 and (info.spans_processes or role == "reference"):
        message = f"{role} has {world_size} workers, which need a process each, and cluster: local is one process."
        fix = f"set cluster=ray, or {role}.world_size=1 and one device at most."
        return Problem(f"{role}.world_size", message, fix, world_size)
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require_available(name: str, *, role: str, world_size: int = 1) -> None:
    """Raise unless this version can run strategy ``name`` in ``role``.

    Raises:
        ConfigError: The strategy is unknown, unfit for the role, or not part of this version; says what is missing
            and what to use instead.
    """
    problem = availability_problem(name, role=role, world_size=world_size)
    if problem is not None:
        raise ConfigError([problem])
