"""Users of tau2-bench's worlds: one who reads out a task, and what one who is a model is told."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from roll.envs.adapters.tau2_conversation import Conversation
from roll.envs.adapters.tau2_worlds import module, stop_tokens, user_tools_of

_TRANSFERRED: Final = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT"
"""What the policies want an agent to say."""

_AGREES: Final = "Yes, go ahead, if that is what I asked for. I have nothing to add."
_MOST_AGREEMENTS: Final = 3
_LONGEST_CALL: Final = 500
"""Characters of the arguments of a call that an agent names."""
_FIRST_PERSON: Final = (
    (r"\byou are\b", "I am"),
    (r"\byou're\b", "I'm"),
    (r"\byou were\b", "I was"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (
        r"\b(to|for|with|from|of|by|give|gives|tell|tells|let|lets|offer|offers|ask|asks|help|helps|allow) you\b",
        r"\1 me",
    ),
    (r"\byou\b", "I"),
)
"""A task speaks to its user; these words make the user speak of itself."""


class ScriptedUser:
    """A user without a model, for :data:`roll.envs.seat_programs.Program`: it reads out its task.

    It says first why it calls, then what it knows, then how it wants things done: one of these whenever the agent
    speaks. On its device it does what the agent names as calls of its tools, and says what they return. To what it is
    asked after that it agrees a few times; at anything else it ends the conversation.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._tools = user_tools_of(conversation.domain)
        self.left = _parts(conversation.task)
        self._agreements = _MOST_AGREEMENTS
        self._is_acting = False

    def __call__(self, told: str, luck: np.random.Generator) -> str:
        """Return what the user says, or calls."""
        stop, transfer, _ = stop_tokens()
        if self._is_acting:
            self._is_acting = False
            return f"I did that, and this is what came of it:\n{told}"
        if _TRANSFERRED in told.upper():
            return transfer
        calls = asked_of(told, self._tools)
        if calls:
            self._is_acting = True
            return "\n".join(written_call(name, arguments) for name, arguments in calls)
        if self.left:
            return self.left.pop(0)
        if "?" in told and self._agreements:
            self._agreements -= 1
            return _AGREES
        return stop


def asked_of(text: str, tools: Mapping[str, Callable[..., Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of a user's tools that an agent names, written as in Python: ``toggle_data()``.

    Arguments are literals, by name or by place; what is no such call is left out.
    """
    if not tools:
        return []
    found = []
    for match in re.finditer(rf"\b({'|'.join(map(re.escape, tools))})\(", text):
        for end in re.finditer(r"\)", text[match.end() : match.end() + _LONGEST_CALL]):
            arguments = _arguments(text[match.start() : match.end() + end.end()], tools[match[1]])
            if arguments is not None:
                found.append((match[1], arguments))
                break
    return found


def written_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in the form ``hermes``."""
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def python_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as :func:`asked_of` reads it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def role_of(conversation: Conversation) -> str:
    """Return what a model that is the user is told: the guidelines of tau2-bench, and the task."""
    has_tools = conversation.user_toolbox is not None
    name = f"simulation_guidelines{'_tools' if has_tools else ''}.md"
    guidelines = (module("tau2.utils.utils").DATA_DIR / "tau2" / "user_simulator" / name).read_text("utf-8")
    return f"{guidelines}\n\n<scenario>\n{conversation.task.user_scenario}\n</scenario>"


def actions_of(tools: Mapping[str, Callable[..., Any]]) -> str:
    """Return what an agent is told of a scripted user's tools; empty where it has none."""
    if not tools:
        return ""
    written = [f"{name}({', '.join(inspect.signature(tool).parameters)})" for name, tool in tools.items()]
    return (
        "The user does on their device what you name as a call in Python, with literal arguments, and tells you what "
        f"came of it. These can be named: {', '.join(written)}."
    )


def _parts(task: Any) -> list[str]:
    """Return what a user has to say, in the order in which it is said."""
    given = task.user_scenario.instructions
    if isinstance(given, str):
        return [_first_person(given)]
    known = " ".join(filter(None, (given.known_info, given.unknown_info)))
    return [_first_person(part) for part in (given.reason_for_call, known, given.task_instructions) if part]


def _first_person(text: str) -> str:
    for pattern, words in _FIRST_PERSON:
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text.strip()


def _arguments(written: str, function: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name; ``None`` where it is none that the function takes."""
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        places = [ast.literal_eval(each) for each in call.args]
        names = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        found = dict(inspect.signature(function).bind(*places, **names).arguments)
        json.dumps(found)  # a literal of Python may be none of JSON
        return found
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
