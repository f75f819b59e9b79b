"""Native keys that ROLL reads otherwise: what contradicts other keys here has a meaning in a file that is for ROLL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.device_mapping import parse_device_mapping
from roll.config.dialects.rows import Convert, Look, Row, Sets
from roll.config.dialects.upstream_roll.rewards import is_gradable

_ROLES: Final = (
    *("actor_train", "actor_infer", "reference", "critic", "student", "teacher", "sft_train"),
    *("student_train", "student_infer"),
)
_TRAINED: Final = ("actor_train", "sft_train")
_COMPARING: Final = {
    "grpo": "reinforce",
    "rloo": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus",
    "step_reinforce": "agentic_reinforce",
}
"""Estimators that compare the members of a group, and what they are where nobody is compared."""


def _estimator(value: Any, look: Look) -> Any:
    """Take group estimators over groups of one for the return: ROLL compares by its normalisation alone."""
    if value == "gae" and look.native("critic") is None:
        # ROLL has a critic without being asked, as the translation adds one.
        return Sets({"adv_estimator": value})
    key = "train_env_manager.group_size" if look.agentic else "num_return_sequences_in_group"
    if value not in _COMPARING or look.native(key) != 1:
        return value
    note = f"{key} is 1, so that {value} has nobody to compare with; the normalisation of scores acts as it says"
    return Sets({"adv_estimator": _COMPARING[value]}, note=note)


def _alone(value: Any, look: Look) -> Any:
    """Take the return where a file names no estimator and its groups have one member."""
    if value != 1 or look.native("adv_estimator") is not None or look("adv_estimator") is not None:
        return value
    return Sets({"train_env_manager.group_size": 1}, {"adv_estimator": "reinforce"})


def _nodes(value: Any, look: Look) -> Any:
    """Count the machines that the devices need where a file names fewer."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    size = look.native("num_gpus_per_node") or 1
    mappings = [f"{role}.device_mapping" for role in _ROLES]
    highest = max(_highest(look(path) if look(path) is not None else look.native(path)) for path in mappings)
    needed = highest // size + 1 if isinstance(size, int) and size > 0 else value
    if needed <= value:
        return value
    return Sets({"num_nodes": needed}, note=f"device {highest} is on machine {needed} of {size} devices each")


def _highest(mapping: Any) -> int:
    try:
        return max(parse_device_mapping(mapping) or [0])
    except (TypeError, ValueError):
        return 0  # validation says what is wrong with it


def _shares(value: Any, look: Look) -> Any:
    """Scale shares that do not sum to 1."""
    if not isinstance(value, Mapping) or not all(isinstance(share, int | float) for share in value.values()):
        return value
    domains = look.native("rewards") or {}
    graded = {name: share for name, share in value.items() if name in domains and is_gradable(domains[name])}
    total = sum(graded.values())
    if total <= 0 or abs(total - 1) < 1e-6:
        return value
    scaled = {name: share / total for name, share in graded.items()}
    shares = "actor_train.data_args.domain_interleave_probs"
    return Sets({shares: scaled}, note=f"the shares of the domains that are graded sum to {total:g}: scaled to 1")


def _devices(role: str) -> Convert:
    """Return what gives the devices of a role processes, and machines of the size that ROLL assumes."""

    def convert(value: Any, look: Look) -> Any:
        fills: dict[str, Any] = {"num_gpus_per_node": 8}
        note = ""
        if _highest(value) > 0:
            fills["cluster"] = "ray"
            note = "" if look.native("cluster") else "several devices: cluster is ray"
        return Sets({f"{role}.device_mapping": value}, fills, note)

    return convert


def _precision(value: Any, look: Look) -> Any:
    if value != "fp16":
        return value
    return Sets({"actor_train.model_args.dtype": "bf16"}, note="training in fp16 needs a loss scale, and there is none")


CONTRADICTIONS: Final[tuple[Row, ...]] = (
    *(Row(f"{role}.device_mapping", f"{role}.device_mapping", "with Ray", _devices(role)) for role in _TRAINED),
    Row("student.device_mapping", "actor_train.device_mapping", "with Ray", _devices("actor_train")),
    Row("student_train.device_mapping", "actor_train.device_mapping", "with Ray", _devices("actor_train")),
    Row("actor_train.model_args.dtype", "actor_train.model_args.dtype", "fp16 is bf16", _precision),
    Row("train_env_manager.group_size", "train_env_manager.group_size", "with the return", _alone),
    Row("adv_estimator", "adv_estimator", "the return, where nobody is compared", _estimator),
    Row("num_nodes", "num_nodes", "as many as the devices need", _nodes),
    Row(
        "actor_train.data_args.domain_interleave_probs",
        "actor_train.data_args.domain_interleave_probs",
        "scaled to 1",
        _shares,
    ),
)
"""Rows of native keys."""
