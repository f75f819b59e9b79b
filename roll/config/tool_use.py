"""The keys of tools: which a policy may call, in which form, and how often."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.worker import Positive

ToolNames = list[str | dict[str, dict[str, Any] | None]]
"""Tools by name; one with options is a mapping of its name to them."""


CallFormat = Literal["hermes", "xml", "python", "llama3_json"]


def _default_formats() -> list[CallFormat]:
    return ["hermes", "xml"]


class ToolUse(ConfigModel):
    """How calls of tools are read, limited and charged."""

    formats: list[CallFormat] = Field(
        default_factory=_default_formats,
        min_length=1,
        description="Forms in which calls are read; a template that describes tools is used if it writes one of them, "
        "else they are described in words, in the first of these forms.",
    )
    max_calls: Positive = Field(
        8, description="Most calls of an episode. What is written after that goes to the environment as it is."
    )
    timeout: Annotated[float, Field(gt=0)] = Field(10.0, description="Seconds for one call.")
    wrong_call_penalty: Annotated[float, Field(le=0)] = Field(
        -0.1, description="Reward of a call that cannot be read, names no tool, or has wrong arguments."
    )
    max_result_characters: Positive = Field(2000, description="A longer result of a call is cut, and says so.")
