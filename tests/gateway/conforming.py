"""A policy that does what testers of APIs ask for: a word, or a call where a function is offered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from roll.generation import GenerationRequest
from roll.rendering import ChatRenderer

_FUNCTION = re.compile(r'"name": "(\w+)".*?"properties": \{"(\w+)"')


def _instance(schema: dict[str, Any]) -> Any:
    """The simplest value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: _instance(inner) for name, inner in schema.get("properties", {}).items()}
    return {"string": "Paris", "integer": 3, "number": 0.5, "boolean": True, "array": [], "null": None}[schema["type"]]


def obliging(renderer: ChatRenderer) -> Callable[[GenerationRequest], list[int]]:
    """What it samples: the rest of a call that was begun for it, a call of the first function, or a word."""

    def next_ids(request: GenerationRequest) -> list[int]:
        prompt = renderer.encoder.decode(request.prompt_ids)
        offered, asked = _FUNCTION.search(prompt), prompt.rpartition("<|im_start|>assistant\n")[2]
        if request.sampling.grammar:
            said = json.dumps(_instance(json.loads(request.sampling.grammar.partition("%json ")[2].split("\n")[0])))
        elif offered is None:
            said = "Hello."
        else:
            function, argument = offered.groups()
            made = json.dumps({"name": function, "arguments": {argument: "Paris"}})
            call = f"<tool_call>\n{made}\n</tool_call>"
            said = call.removeprefix(asked)
        return [*renderer.encoder.encode(said), renderer.stop_token_ids[0]]

    return next_ids
