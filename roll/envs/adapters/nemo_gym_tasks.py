"""Tasks of NeMo Gym's JSON Lines files, and what a policy writes as items of OpenAI's Responses format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from roll.envs.errors import EnvConfigError
from roll.tools.calls import ToolCall

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MARKS: Final = ("<tool_call>", "<python>", "<|python_tag|>")
"""What calls of tools begin with."""


@dataclass(frozen=True, slots=True)
class GymTask:
    """A row of a file.

    Attributes:
        row: The whole row, which servers are sent.
        messages: What the policy is told, with the roles of chat templates; the system speaks once, and first.
        tools: The functions that it may call, as the row describes them.
    """

    row: Mapping[str, Any]
    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...]


@lru_cache(maxsize=16)
def read_tasks(path: str) -> tuple[GymTask, ...]:
    """Return the tasks of a file, once read in a process.

    Raises:
        EnvConfigError: There is no such file, or a row is no task of text and functions.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EnvConfigError(f"tasks={path!r}: it cannot be read ({error})") from error
    tasks = [_task(line, f"tasks={path!r}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise EnvConfigError(f"tasks={path!r}: it has no rows")
    return tuple(tasks)


def _task(line: str, where: str) -> GymTask:
    try:
        row = json.loads(line)
        asked = row["responses_create_params"]
        given = asked["input"]
        tools = tuple(_function(tool) for tool in asked.get("tools") or ())
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        messages = _messages(items, asked.get("instructions"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise EnvConfigError(f"{where}: it is no task of NeMo Gym with texts and functions ({said})") from error
    if not messages:
        raise EnvConfigError(
            f"{where}: it says nothing to a policy; a program of NeMo Gym's own has to write its input"
        )
    return GymTask(row, messages, tools)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool["type"] != "function":
        raise ValueError(f"a tool of the type {tool['type']!r}")
    return {
        "name": str(tool["name"]),
        "description": str(tool.get("description") or ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
    }


def _messages(items: Sequence[Mapping[str, Any]], instructions: str | None) -> tuple[Mapping[str, str], ...]:
    """Return items of a conversation as messages of text; thoughts are left out, as chat templates leave them out."""
    system, said = [instructions or ""], list[dict[str, str]]()
    for item in items:
        told = _message(item)
        if told is None:
            continue
        role, text = told
        if role == "system":
            system.append(text)
        elif said and role == said[-1]["role"] == "assistant":
            said[-1]["content"] = f"{said[-1]['content']}\n{text}".strip()
        else:
            said.append({"role": role, "content": text})
    spoken = "\n\n".join(filter(None, system))
    return (*([{"role": "system", "content": spoken}] if spoken else ()), *said)


def _message(item: Mapping[str, Any]) -> tuple[str, str] | None:
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return None
    if kind == "function_call":
        call = {"name": item["name"], "arguments": json.loads(item["arguments"])}
        return "assistant", f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    if kind == "function_call_output":
        return "tool", _text(item["output"])
    if kind != "message":
        raise ValueError(f"an item of the type {kind!r}")
    return _ROLES[item["role"]], _text(item["content"])


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content)


class ResponseItems:
    """What was said in an episode after its task, as the output of a response: the format of /verify and /step."""

    def __init__(self) -> None:
        """Begin an episode."""
        self.items: list[dict[str, Any]] = []
        self._count = 0

    def add_response(self, response: str, calls: Sequence[ToolCall]) -> list[str]:
        """Add what the policy wrote: its thoughts, its text, its calls.

        A call that cannot be read stays in the text.

        Args:
            response: The text.
            calls: The calls in it, with arguments of the types that the tools take.

        Returns:
            For each call the id that its output is to have; empty for one that cannot be read.
        """
        thoughts, spoken = _parted(response)
        if thoughts:
            self._add("reasoning", summary=[{"type": "summary_text", "text": thoughts}])
        text = _before_calls(spoken) if calls and not any(call.problem for call in calls) else spoken
        if text or not calls:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            self._add("message", role="assistant", status="completed", content=content)
        return ["" if call.problem else self._add_call(call) for call in calls]

    def add_output(self, call_id: str, output: str) -> None:
        """Add what a call came to."""
        self.items.append({"type": "function_call_output", "call_id": call_id, "output": output})

    def response(self, row: Mapping[str, Any], since: int = 0) -> dict[str, Any]:
        """Return the items as the whole response to a task, those from ``since`` on."""
        asked = row["responses_create_params"]
        calls_in_parallel = asked.get("parallel_tool_calls")
        return {
            "id": "resp_roll",
            "object": "response",
            "created_at": 0,
            "model": asked.get("model") or "policy",
            "status": "completed",
            "output": self.items[since:],
            "tools": asked.get("tools") or [],
            "tool_choice": asked.get("tool_choice") or "auto",
            "parallel_tool_calls": True if calls_in_parallel is None else calls_in_parallel,
        }

    def _add_call(self, call: ToolCall) -> str:
        call_id = f"call_{self._count}"
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        self._add("function_call", call_id=call_id, name=call.name, arguments=arguments, status="completed")
        return call_id

    def _add(self, kind: str, **fields: Any) -> None:
        self.items.append({"type": kind, "id": f"item_{self._count}", **fields})
        self._count += 1


def _parted(response: str) -> tuple[str, str]:
    """Return what a model thinks, and what it says."""
    before, closed, spoken = response.rpartition("</think>")
    spoken, _, unfinished = spoken.partition("<think>")
    thoughts = (before if closed else "") + unfinished
    return thoughts.replace("<think>", "").strip(), spoken.strip()


def _before_calls(spoken: str) -> str:
    found = [place for place in map(spoken.find, _MARKS) if place >= 0]
    return spoken[: min(found, default=0)].strip()
