"""A policy that does what testers of APIs ask for: a word, or a call where a function is offered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from roll.generation import GenerationRequest
from roll.rendering import ChatRenderer

_FUNCTION = re.compile(r'"name": "(\w+)".*?"properties": \{"(\w+)"')


def obliging(renderer: ChatRenderer) -> Callable[[GenerationRequest], list[int]]:
    """What it samples: the rest of a call that was begun for it, a call of the first function, or a word."""

    def next_ids(request: GenerationRequest) -> list[int]:
        prompt = renderer.encoder.decode(request.prompt_ids)
        offered, asked = _FUNCTION.search(prompt), prompt.rpartition("<|im_start|>assistant\n")[2]
        if offered is None:
            said = "Hello."
        else:
            function, argument = offered.groups()
            made = json.dumps({"name": function, "arguments": {argument: "Paris"}})
            call = f"<tool_call>\n{made}\n</tool_call>"
            said = call.removeprefix(asked)
        return [*renderer.encoder.encode(said), renderer.stop_token_ids[0]]

    return next_ids
