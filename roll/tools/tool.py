"""A tool: a typed Python function with a docstring, and the JSON schema that follows from it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from roll.tools.errors import ToolConfigError, WrongCallError

Risk = Literal["pure", "network", "code"]
"""What a tool may do: compute, reach other machines, or run what the policy wrote."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What a policy may call.

    Attributes:
        name: How it is called.
        description: What it does, for the policy.
        parameters: JSON schema of its arguments, an object.
        run: Takes the arguments by name; returns the result as text.
        risk: What it may do.
        close: Lets go of what it holds.
        lane: What remembers from call to call: calls of tools with the same one are made one after the other, in the
            order in which they were written. ``None``: they may be made at the same time as any other.

    ``run`` raises :class:`WrongCallError` for arguments that it does not take.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], str]
    risk: Risk = "pure"
    close: Callable[[], None] = lambda: None
    lane: object | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The description that chat templates take (``tools=``), in OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def tool_of(name: str, function: Callable[..., Any], risk: Risk = "pure") -> Tool:
    """Return the tool that a function is.

    Args:
        name: How it is called.
        function: Every parameter has a type and is described under ``Args:`` of its docstring (an object with
            ``__call__`` will do). It returns text, or what ``str`` makes text of. Calls of a function, and of an object
            that says so (``at_the_same_time = True``), may be made at the same time.
        risk: What it may do.

    Raises:
        ToolConfigError: It has no docstring, or a parameter has no type or no description.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    documentation = docstring_parser.parse(inspect.getdoc(called) or "")
    about = " ".join(filter(None, (documentation.short_description, documentation.long_description)))
    if not about:
        raise ToolConfigError(f"tool {name!r} has no docstring: write what it does, for the policy to read")
    arguments = _arguments_of(name, called, {each.arg_name: each.description for each in documentation.params})

    def run(given: Mapping[str, Any]) -> str:
        try:
            known = arguments.model_validate(dict(given))
        except ValidationError as error:
            raise WrongCallError("; ".join(_complaint(each) for each in error.errors())) from error
        return str(function(**{field: getattr(known, field) for field in arguments.model_fields}))

    schema = _without_titles(arguments.model_json_schema())
    schema.pop("additionalProperties", None)
    schema.setdefault("properties", {})
    lane = None if called is function or getattr(function, "at_the_same_time", False) else function
    return Tool(name, " ".join(about.split()), schema, run, risk, getattr(function, "close", lambda: None), lane)


def _arguments_of(name: str, function: Callable[..., Any], about: Mapping[str, str | None]) -> type[BaseModel]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolConfigError(
                f"tool {name!r}: parameter {parameter.name!r} has no type; write `{parameter.name}: …`"
            )
        if not about.get(parameter.name):
            raise ToolConfigError(
                f"tool {name!r}: parameter {parameter.name!r} is not described; add it under `Args:` of the docstring"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        described = " ".join(str(about[parameter.name]).split())
        fields[parameter.name] = (hints[parameter.name], Field(default, description=described))
    model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _complaint(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _without_titles(schema: Any) -> Any:
    """Return a JSON schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(each) for name, each in value.items()} if key in _NAMED else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }


_NAMED = ("properties", "$defs")
