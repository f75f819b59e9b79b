"""Calls of tools as models write them, for whoever reads them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from roll.tools.calls import find_calls

WRITTEN: dict[str, list[str]] = {
    "hermes": [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, {"c": null}]}}\n</tool_call>',
        'I add.\n<tool_call>{"name": "add", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "b", "arguments": {"x": "</x>"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"text": "é\\n\\"quoted\\""}}',
        "No call here.",
        "<answer>Up</answer>",
    ],
    "xml": [
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=text>\ntwo\nlines\n</parameter>\n"
        "</function>\n</tool_call>",
        "First.\n<tool_call>\n<function=add>\n</function>\n</tool_call>\n<tool_call>\n<function=b>\n<parameter=text>\n"
        " x </parameter>\n</function>\n</tool_call>",
        "No call here.",
    ],
    "llama3_json": [
        '{"name": "add", "parameters": {"a": 1}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "b", "parameters": {"x": {"y": [1]}}}',
        '{"name": "add", "arguments": {"a": "1; 2"}}',
        "The answer is 4.",
    ],
}
"""Responses by the name of their form; the arguments ``a`` and ``text`` are text where a schema decides."""

CASES = [(name, text) for name, texts in WRITTEN.items() for text in texts]
_TEXTS = {name: {"type": "string"} for name in ("a", "text")}  # all else would be converted by type
FUNCTIONS: list[dict[str, Any]] = [
    {"name": tool, "parameters": {"type": "object", "properties": _TEXTS}} for tool in ("add", "b")
]
"""The functions that are called."""

_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="<>"), max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


def written(name: str) -> st.SearchStrategy[str]:
    """Return what draws a response with one to three calls in a form, with any arguments."""
    arguments: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.sampled_from(["a", "text", "x", "y"]), _JSON)
    if name == "xml":
        arguments = st.dictionaries(st.sampled_from(["a", "text"]), _WORDS)
    calls = st.lists(st.tuples(st.sampled_from(["add", "b"]), arguments), min_size=1, max_size=3)
    return calls.map({"hermes": _as_hermes, "xml": _as_xml, "llama3_json": _as_llama3}[name])


def read(name: str, text: str) -> list[tuple[str, Any]]:
    """Return the names and arguments that we read, none of which may be wrong."""
    calls = find_calls(text, [name])
    assert not any(call.problem for call in calls)
    return [(call.name, dict(call.arguments)) for call in calls]


def _as_hermes(calls: list[tuple[str, Any]]) -> str:
    bodies = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "So:" + "".join(f"\n<tool_call>\n{body}\n</tool_call>" for body in bodies)


def _as_xml(calls: list[tuple[str, Any]]) -> str:
    text = ""
    for name, arguments in calls:
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        text += f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>\n"
    return text


def _as_llama3(calls: list[tuple[str, Any]]) -> str:
    # Not escaped: SGLang reads pairs of escapes for one character as two.
    bodies = [json.dumps({"name": name, "parameters": given}, ensure_ascii=False) for name, given in calls]
    return "<|python_tag|>" + "; ".join(bodies)
