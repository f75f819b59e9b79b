"""Values that a system's own schema gives keys which its files name in interpolations and never set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

_RESPONSES: Final = 32
_PROMPT: Final = 1024
_RESPONSE: Final = 2048


def assumed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by path that ``tree`` relies on; those of ChatLearn, whose templates do."""
    if not isinstance(tree.get("runtime_args"), Mapping) or not isinstance(tree.get("models"), Mapping):
        return {}
    policy = tree["models"].get("policy")
    policy = policy if isinstance(policy, Mapping) else {}
    lengths = [
        policy.get("max_prompt_tokens_length", _PROMPT),
        policy.get("max_response_tokens_length", _RESPONSE),
    ]
    return {
        "runtime_args.num_inference_per_prompt": _RESPONSES,
        "models.policy_trainer.seq_length": sum(size for size in lengths if isinstance(size, int)),
    }


def filled(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tree`` with ``values`` where it has none."""
    found = copy.deepcopy(dict(tree))
    for path, value in values.items():
        *parents, last = path.split(".")
        section: Any = found
        for parent in parents:
            section = section.setdefault(parent, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.setdefault(last, value)
    return found


def set_in(tree: Mapping[str, Any], path: str) -> bool:
    """Tell whether ``tree`` sets a key itself."""
    section: Any = tree
    for key in path.split("."):
        if not isinstance(section, Mapping) or key not in section:
            return False
        section = section[key]
    return True
