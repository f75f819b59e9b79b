"""The form that an answer is asked to have: any text, a JSON object, or what a JSON schema allows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from roll.gateway.errors import invalid, unsupported

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_SPACED: Final[Mapping[str, Any]] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space where Python's json has it, and nowhere else: a policy could draw it without end."""


class AnyText(BaseModel):
    """Text of any form."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]

    def schema_of_answer(self) -> None:
        """Return that there is no schema."""


class AnyObject(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_object"]

    def schema_of_answer(self) -> Mapping[str, Any]:
        """Return its schema."""
        return _ANY_OBJECT


class NamedSchema(BaseModel):
    """A JSON schema, and what is said of it. It is kept to, ``strict`` or not."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=lambda: dict(_ANY_OBJECT), alias="schema")
    strict: bool | None = None

    def schema_of_answer(self) -> Mapping[str, Any]:
        """Return the schema."""
        return self.schema_


def grammar_of(schema: Mapping[str, Any], calls: Sequence[str], param: str) -> str:
    """Return the grammar of answers that a schema allows, or that begin as calls of functions do.

    Args:
        schema: A JSON schema.
        calls: What calls begin with; none without functions.
        param: The field of the request, for errors.

    Raises:
        ApiError: The schema is none, or has what cannot be kept to.
    """
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise unsupported(param, "answers are held to a form by llguidance, which is not installed") from None
    begun = " | ".join(json.dumps(each) for each in calls)
    lines = ["start: answer | call" if calls else "start: answer"]
    lines += [f"answer: %json {json.dumps({**schema, 'x-guidance': _SPACED})}"]
    lines += [f"call: ({begun}) REST", "REST: /(.|\\n)*/"] if calls else []
    grammar = "\n".join(lines)
    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise invalid(f"Invalid schema for '{param}': {problem}", param, "invalid_json_schema")
    return grammar
