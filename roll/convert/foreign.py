"""What is read from a configuration of another system, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roll.config.dialects import GUIDES, ForeignKey, Guide
from roll.config.kinds import PIPELINES
from roll.config.validation import valid_keys

ROLL: Final = "roll"
"""The system whose keys are native."""

SYSTEMS: Final[Mapping[str, str]] = {
    ROLL: "",
    "verl": "verl",
    "trinity": "Trinity-RFT",
    "chatlearn": "ChatLearn",
    "mindspeed": "MindSpeed-RL",
}
"""What ``--from`` takes: each with the name of its guide, empty for the native spelling."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A configuration as it was read, interpolations resolved.

    Attributes:
        tree: Its keys as nested mappings.
        path: The file that it was read from.
        program: The module or script that it is for, where the file says so (``verl.trainer.main_ppo``).
        unread: What the file holds that could not be read, as sentences (a variable that nothing sets).
        left_out: What became of keys that are no part of ``tree``.
    """

    tree: Mapping[str, Any]
    path: Path
    program: str = ""
    unread: tuple[str, ...] = ()
    left_out: tuple[ForeignKey, ...] = ()


def guide_of(system: str) -> Guide | None:
    """Return the table of a system's keys, ``None`` for the native spelling."""
    return next((guide for guide in GUIDES if guide.name == SYSTEMS[system]), None)


def detect(foreign: Foreign) -> str:
    """Return the system that a configuration is of: that of its program, else the one that knows most of its keys."""
    for system in SYSTEMS:
        if system != ROLL and system in foreign.program.lower():
            return system
    leaves = list(_leaves(foreign.tree))
    native = {key for name in PIPELINES for key in valid_keys(PIPELINES.get(name).config)}
    known = {ROLL: sum(leaf[0] in native for leaf in leaves)}
    for system in SYSTEMS:
        guide = guide_of(system)
        if guide is not None:
            known[system] = sum(_knows(guide, leaf) for leaf in leaves)
    return max(known, key=lambda system: known[system])


def _knows(guide: Guide, leaf: tuple[str, ...]) -> bool:
    """Tell whether a guide has a row for a key, or for a section that it is in."""
    if leaf[0] not in guide.heads:
        return False
    path = (guide.heads[leaf[0]], *leaf[1:])
    return any(guide.row(".".join(path[:depth])) is not None for depth in range(1, len(path) + 1))


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in tree.items():
        path = (*above, str(key))
        found += _leaves(value, path) if isinstance(value, Mapping) and value else [path]
    return found
