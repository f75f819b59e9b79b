"""OpenAI's Responses: bodies in, bodies and streams out. Nothing is stored between calls."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from roll.gateway.answer_form import AnyObject, AnyText, NamedSchema
from roll.gateway.fields import Body
from roll.gateway.openai_chat import HINTS, must_call
from roll.gateway.records import Answers, Asked, ChatMessage, FunctionCall
from roll.gateway.streaming import event, pieces

_LOOSE = ConfigDict(extra="ignore")
"""Clients send back whole items of an answer: ids, states, annotations."""


class _Part(BaseModel):
    model_config = _LOOSE

    type: Literal["input_text", "output_text", "text"]
    text: str


class _Said(BaseModel):
    model_config = _LOOSE

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]

    def read(self) -> ChatMessage:
        return ChatMessage("system" if self.role == "developer" else self.role, _joined(self.content))


class _Call(BaseModel):
    model_config = _LOOSE

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _Result(BaseModel):
    model_config = _LOOSE

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[_Part]


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _ToolElsewhere(BaseModel):
    """A tool that OpenAI's servers run, or whose calls are no JSON: the policy is not told of it, and calls none."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    ]


class _SchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class _Text(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: AnyText | AnyObject | _SchemaFormat = AnyText(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(Body):
    """The fields of a response that are understood."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "store": (False,),
        "background": (False,),
        "include": ([], ["reasoning.encrypted_content"]),
        "service_tier": ("auto", "default"),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "previous_response_id": (),
        "conversation": (),
    }
    hints: ClassVar[frozenset[str]] = HINTS | {"client_metadata", "stream_options", "reasoning"}

    model: str
    input: str | Annotated[list[_Result | _Call | _Said], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    tools: list[_Tool | _ToolElsewhere] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: _Text = _Text()
    stream: bool = False

    @property
    def _functions(self) -> list[_Tool]:
        return [tool for tool in self.tools if isinstance(tool, _Tool)]

    def asked(self) -> Asked:
        """Return what is asked for.

        Raises:
            ApiError: It cannot be had.
        """
        tools = [] if self.tool_choice == "none" else [_schema(tool) for tool in self._functions]
        return Asked(
            messages=list(self._messages()),
            tools=tools,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            must_call=must_call(self.tool_choice),
            schema=self.text.format.schema_of_answer(),
            schema_param="text.format",
            most_calls=None if self.parallel_tool_calls else 1,
        )

    def response(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer."""
        return self._body(answers, _output(answers), "incomplete" if _is_cut(answers) else "completed")

    def stream_of(self, answers: Answers) -> Iterator[bytes]:
        """Yield the events of an answer that is complete."""
        numbers = itertools.count()

        def tell(kind: str, **fields: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        output = _output(answers)
        whole = self._body(answers, output, "incomplete" if _is_cut(answers) else "completed")
        begun = {
            **whole,
            "output": [],
            "status": "in_progress",
            "usage": None,
            "incomplete_details": None,
            "completed_at": None,
        }
        yield tell("response.created", response=begun)
        yield tell("response.in_progress", response=begun)
        for index, item in enumerate(output):
            where = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "message":
                yield tell(
                    "response.output_item.added",
                    output_index=index,
                    item={**item, "status": "in_progress", "content": []},
                )
                part = item["content"][0]
                here = {**where, "content_index": 0}
                yield tell("response.content_part.added", **here, part={**part, "text": ""})
                for piece in pieces(part["text"]):
                    yield tell("response.output_text.delta", **here, delta=piece, logprobs=[])
                yield tell("response.output_text.done", **here, text=part["text"], logprobs=[])
                yield tell("response.content_part.done", **here, part=part)
            else:
                started = {**item, "status": "in_progress", "arguments": ""}
                yield tell("response.output_item.added", output_index=index, item=started)
                yield tell("response.function_call_arguments.delta", **where, delta=item["arguments"])
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield tell("response.function_call_arguments.done", **where, **done)
            yield tell("response.output_item.done", output_index=index, item=item)
        yield tell(f"response.{whole['status']}", response=whole)

    def _messages(self) -> Iterator[ChatMessage]:
        """Yield the conversation; what an answer said and the calls that it made are one message again."""
        if self.instructions:
            yield ChatMessage("system", self.instructions)
        if isinstance(self.input, str):
            yield ChatMessage("user", self.input)
            return
        said: ChatMessage | None = None
        for item in self.input:
            if isinstance(item, _Call):
                call = FunctionCall(item.name, item.arguments, item.call_id)
                before = said or ChatMessage("assistant", "")
                said = ChatMessage("assistant", before.text, (*before.calls, call))
                continue
            if said is not None:
                yield said
                said = None
            if isinstance(item, _Result):
                yield ChatMessage("tool", _joined(item.output))
            elif item.role == "assistant":
                said = item.read()
            else:
                yield item.read()
        if said is not None:
            yield said

    def _body(self, answers: Answers, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
        prompt, sampled = len(answers.prompt_ids), answers.completion_tokens
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": int(time.time()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": self.parallel_tool_calls,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "safety_identifier": None,
            "top_logprobs": 0,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": self.text.format.model_dump(by_alias=True)},
            "tool_choice": self.tool_choice,
            "tools": [{**tool.model_dump(), "strict": bool(tool.strict)} for tool in self._functions],
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": answers.cached_tokens},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + sampled,
            },
        }


def _output(answers: Answers) -> list[dict[str, Any]]:
    said = answers.answers[0].message
    status = "incomplete" if _is_cut(answers) else "completed"
    items: list[dict[str, Any]] = []
    if said.text or not said.calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "status": status, "role": "assistant"}
        items.append({**head, "content": [part]})
    items += [
        {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in said.calls
    ]
    return items


def _is_cut(answers: Answers) -> bool:
    return answers.answers[0].finish == "length"


def _joined(content: str | list[_Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _schema(tool: _Tool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    described = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": described}
