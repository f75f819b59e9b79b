"""How functions are told to a policy, how it calls them, and how a conversation with calls is written as plain text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.gateway.errors import invalid
from roll.gateway.records import ChatMessage, FunctionCall
from roll.gateway.tree import ConversationTree, Plain
from roll.rendering import Renderer, as_users
from roll.tools.calls import described, find_calls, typed_arguments

_READABLE: Final = ("hermes", "xml", "llama3_json")
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "hermes": ("<tool_call>",),
    "xml": ("<tool_call>",),
    "llama3_json": ("<|python_tag|>", "{"),
}
"""What calls begin with: everything before it is what a policy says beside them."""
_BEGUN: Final[Mapping[str, tuple[str, str]]] = {
    "hermes": ('<tool_call>\n{"name": "', '", "arguments": '),
    "xml": ("<tool_call>\n<function=", ">\n"),
    "llama3_json": ('{"name": "', '", "parameters": '),
}
"""What stands before the name of a function, and behind it."""


@dataclass(frozen=True, slots=True)
class Speech:
    """A renderer that describes these functions, and the form in which calls are read.

    Attributes:
        renderer: Whose prompts describe them, where the chat template can.
        tools: The functions.
        form: Name of a form of :mod:`roll.tools.calls`; empty without functions.
        told: What the system message says of them where the chat template cannot.
    """

    renderer: Renderer
    tools: Sequence[Mapping[str, Any]] = ()
    form: str = ""
    told: str = ""

    @classmethod
    def of(cls, renderer: Renderer, tools: Sequence[Mapping[str, Any]]) -> Speech:
        """Let the chat template describe functions, if calls in its form are read; else describe them in words.

        Raises:
            ApiError: A function is described by something that is no schema.
        """
        if not tools:
            return cls(renderer)
        for number, tool in enumerate(tools):
            if not isinstance(tool["function"]["parameters"].get("properties", {}), Mapping):
                raise invalid(f"tools.{number}: 'properties' of its parameters is no JSON object.", "tools")
        describing = renderer.with_tools(tools)
        if describing is not None:
            function = tools[0]["function"]
            name, arguments = function["name"], dict.fromkeys(function["parameters"].get("properties", {}), "probe")
            written = describing.written_call(name, arguments) or ""
            for form in _READABLE:
                found = find_calls(written, (form,))
                if len(found) == 1 and (found[0].name, dict(found[0].arguments)) == (name, arguments):
                    return cls(describing, tools, form)
        return cls(renderer, tools, _READABLE[0], described(tools, _READABLE[0]))

    @property
    def marks(self) -> tuple[str, ...]:
        """What a call begins with that is an answer by itself; nothing without functions."""
        return _BEGUN[self.form][:1] if self.form else ()

    def plain(self, messages: Sequence[ChatMessage], recorded: ConversationTree) -> list[Plain]:
        """Return a conversation as a renderer takes it.

        What the policy said is written as it was sampled, wherever it stands; other calls as the template writes them.
        """
        written: list[dict[str, str]] = []
        for message in messages:
            text = message.text
            if message.role == "assistant":
                sampled = recorded.text_of(message)
                text = self._with_calls(message) if sampled is None else sampled
            written.append({"role": message.role, "content": text})
        if self.told and written[0]["role"] == "system":
            written[0]["content"] = "\n\n".join(filter(None, (written[0]["content"], self.told)))
        elif self.told:
            written.insert(0, {"role": "system", "content": self.told})
        return list(self.shown(written))

    def shown(self, messages: Sequence[Plain]) -> Sequence[Plain]:
        """Return messages in which what tools say is the user's, where the chat template has no such role."""
        if any(message["role"] == "tool" for message in messages) and self.renderer.role_problem("tool") is not None:
            return as_users(messages)
        return messages

    def begun(self, must_call: str | None) -> str:
        """Return what an answer begins with that has to call a function.

        Args:
            must_call: Which; empty for any, ``None`` where none has to be called.

        Raises:
            ApiError: There is no such function.
        """
        if must_call is None:
            return ""
        names = [tool["function"]["name"] for tool in self.tools]
        if not names or must_call and must_call not in names:
            raise invalid(f"There is no function {must_call!r} among 'tools'.", "tool_choice")
        before, behind = _BEGUN[self.form]
        return f"{before}{must_call}{behind}" if must_call else before

    def read(self, text: str) -> tuple[str, tuple[FunctionCall, ...]]:
        """Return what a response says and the calls that it makes; one that cannot be read leaves all of it as text."""
        calls = find_calls(text, (self.form,)) if self.form else []
        if not calls or any(call.problem for call in calls):
            return text, ()
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in self.tools}
        made = []
        for call in calls:
            given = typed_arguments(call.arguments, schemas.get(call.name, {})) if call.as_text else call.arguments
            arguments = json.dumps(dict(given), ensure_ascii=False)
            made.append(FunctionCall(call.name, arguments, f"call_{uuid.uuid4().hex[:24]}"))
        # A call inside of thoughts is none.
        start = text.rfind("</think>") + 1
        ends = [place for mark in _MARKS[self.form] if (place := text.find(mark, start)) >= 0]
        return text[: min(ends)].rstrip(), tuple(made)

    def _with_calls(self, message: ChatMessage) -> str:
        written = [message.text] if message.text else []
        for call in message.calls:
            name, text = call.content
            arguments = json.loads(text) if text.startswith("{") else {}
            as_template = self.renderer.written_call(name, arguments)
            written.append(as_template or _hermes(name, arguments))
        return "\n".join(written)


def _hermes(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
