"""Calls of tools in what a policy wrote, in the forms that models speak.

==============  ==============================================================  ====================================
Format          Written                                                         Models
==============  ==============================================================  ====================================
``hermes``      ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``        Hermes, Qwen 2.5 and 3, SmolLM 3
``xml``         ``<tool_call><function=…><parameter=…>…</parameter>…``          Qwen 3 Coder, Qwen 3.5
``python``      ``<python>print(6 * 7)</python>``                               a tool ``python`` that takes ``code``
``llama3_json`` ``{"name": …, "parameters": {…}}``, several joined by ``;``     Llama 3
==============  ==============================================================  ====================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: The tool; empty where it cannot be read.
        arguments: By name.
        problem: Why it cannot be read; empty where it can.
        as_text: Whether arguments are text whatever their type, so that a schema must say what they are.
    """

    name: str
    arguments: Mapping[str, Any]
    problem: str = ""
    as_text: bool = False


_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*?)(?:</function>\s*\Z|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PROGRAM = re.compile(r"<python>(.*?)(?:</python>|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"\s*;?\s*")


def find_calls(response: str, formats: Sequence[str]) -> list[ToolCall]:
    """Return the calls of a response, in their order; those that cannot be read say why.

    What a model thinks (before ``</think>``, or after a ``<think>`` that never ends) does not count.

    Args:
        response: The text.
        formats: Names of forms; the first in which anything is found counts alone.
    """
    spoken = response.rpartition("</think>")[2]
    spoken = spoken.partition("<think>")[0]
    for name in formats:
        calls = list(_READERS[name](spoken))
        if calls:
            return calls
    return []


def _hermes(text: str) -> Iterator[ToolCall]:
    for block in _BLOCK.findall(text):
        if not _FUNCTION.match(block):
            yield _json_call(block, "arguments")


def _xml(text: str) -> Iterator[ToolCall]:
    for block in _BLOCK.findall(text):
        function = _FUNCTION.match(block)
        if function is not None:
            pairs = _PARAMETER.findall(function[2])
            yield ToolCall(function[1].strip(), {key.strip(): _trimmed(value) for key, value in pairs}, as_text=True)


def _python(text: str) -> Iterator[ToolCall]:
    for program in _PROGRAM.findall(text):
        yield ToolCall("python", {"code": program.strip("\n")})


def _llama3_json(text: str) -> Iterator[ToolCall]:
    tagged = _PYTHON_TAG in text
    rest = text.partition(_PYTHON_TAG)[2].strip() if tagged else text.strip()
    if not rest.startswith("{"):
        return
    decoder = json.JSONDecoder()
    position = 0
    found: list[ToolCall] = []
    while position < len(rest):
        try:
            value, position = decoder.raw_decode(rest, position)
        except json.JSONDecodeError as error:
            if tagged or found:
                found.append(ToolCall("", {}, f"it is no valid JSON: {error}"))
            break
        if not isinstance(value, dict) or "name" not in value or not {"parameters", "arguments"} & value.keys():
            break  # An answer may be JSON too.
        found.append(_call_of(value, "parameters" if "parameters" in value else "arguments"))
        separator = _SEPARATOR.match(rest, position)
        position = separator.end() if separator else position
    yield from found


def _json_call(text: str, key: str) -> ToolCall:
    try:
        return _call_of(json.loads(text), key)
    except (json.JSONDecodeError, RecursionError) as error:
        return ToolCall("", {}, f"it is no valid JSON: {error}")


def _call_of(value: Any, key: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, f'it must be a JSON object with "name" and "{key}"')
    arguments = value.get(key, {})
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], {}, f'"{key}" must be a JSON object')
    return ToolCall(value["name"], arguments)


def _trimmed(value: str) -> str:
    """Return a value without the line breaks that set it off from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


_READERS: Final[Mapping[str, Callable[[str], Iterator[ToolCall]]]] = {
    "hermes": _hermes,
    "xml": _xml,
    "python": _python,
    "llama3_json": _llama3_json,
}

EXAMPLES: Final[Mapping[str, str]] = {
    "hermes": '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>',
    "xml": "<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n</function>\n</tool_call>",
    "python": "<python>\nprint(6 * 7)\n</python>",
    "llama3_json": '{"name": "NAME", "parameters": {"ARGUMENT": VALUE}}',
}
"""How a call is written, for a policy whose chat template does not say it."""


def described(schemas: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return what a policy is told of tools where its chat template does not say it.

    Args:
        schemas: Descriptions in OpenAI's form.
        form: The form in which calls are to be written.
    """
    lines = ["You may call these tools:"]
    lines += [json.dumps(schema["function"], ensure_ascii=False) for schema in schemas]
    return "\n".join([*lines, "To call one, write:", EXAMPLES[form]])


def typed_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that came as text as the schema has them: text stays, all else is read as JSON where it is."""
    properties = parameters.get("properties", {})
    return {name: _read(value, properties.get(name, {})) for name, value in arguments.items()}


def _read(value: Any, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
