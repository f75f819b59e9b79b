"""What a system does where a file says nothing, and this one does something else: keys in its own spelling.

A file says how its job differs from what its system does anyway; what it leaves out is part of the job too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from roll.convert.reading.assumed import set_in
from roll.convert.unsaid.chatlearn import of_chatlearn
from roll.convert.unsaid.mindspeed import of_mindspeed
from roll.convert.unsaid.trinity import of_trinity
from roll.convert.unsaid.upstream_roll import of_roll
from roll.convert.unsaid.verl import of_verl

_OF: Final[Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]]] = {
    "chatlearn": of_chatlearn,
    "mindspeed": of_mindspeed,
    "roll": of_roll,
    "trinity": of_trinity,
    "verl": of_verl,
}


def unsaid(system: str, pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return by path what a job leaves to its system, and what this one would do otherwise.

    Args:
        system: Whose it is, a key of ``SYSTEMS``.
        pipeline: The kind of run that it becomes.
        tree: Its keys.
    """
    return {path: value for path, value in _OF[system](pipeline, tree).items() if not set_in(tree, path)}
