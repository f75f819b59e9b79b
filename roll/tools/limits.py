"""How calls of tools are read, limited and charged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How calls of tools are read, limited and charged; the keys ``tool_use`` of a tag.

    Attributes:
        formats: Forms in which calls are read (:mod:`roll.tools.calls`).
        max_calls: Most calls of an episode.
        timeout: Seconds for one call.
        wrong_call_penalty: Reward of a call that cannot be answered as it is written; at most 0.
        max_result_characters: A longer result is cut.
    """

    formats: tuple[str, ...] = ("hermes", "xml")
    max_calls: int = 8
    timeout: float = 10.0
    wrong_call_penalty: float = -0.1
    max_result_characters: int = 2000
