"""Anthropic's Messages: bodies in, bodies and streams out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from roll.gateway.errors import ApiError
from roll.gateway.fields import Body
from roll.gateway.records import Answer, Answers, Asked, ChatMessage, FunctionCall
from roll.gateway.streaming import event, pieces

_STRICT = ConfigDict(extra="forbid")
_DIRECT: Final = {"caller": {"type": "direct"}}
_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class _Text(BaseModel):
    model_config = _STRICT

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: None = None


class _ToolUse(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(BaseModel):
    model_config = _STRICT

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_Text] = ""
    is_error: bool = False
    cache_control: dict[str, Any] | None = None


_Block = Annotated[_Text | _ToolUse | _ToolResult, Field(discriminator="type")]


class _Message(BaseModel):
    model_config = _STRICT

    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]

    def read(self) -> Iterator[ChatMessage]:
        """Yield the results of tools, each a message of its own, then what is said."""
        blocks = [_Text(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        for block in blocks:
            if isinstance(block, _ToolResult):
                text = _joined(block.content)
                yield ChatMessage("tool", f"Error: {text}" if block.is_error else text)
        calls = tuple(
            FunctionCall(block.name, json.dumps(block.input, ensure_ascii=False), block.id)
            for block in blocks
            if isinstance(block, _ToolUse)
        )
        said = [block for block in blocks if isinstance(block, _Text)]
        if said or calls or self.role == "assistant":
            yield ChatMessage(self.role, _joined(said), calls)


class _Tool(BaseModel):
    model_config = _STRICT

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    cache_control: dict[str, Any] | None = None


class _Choice(BaseModel):
    model_config = _STRICT

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Format(BaseModel):
    model_config = _STRICT

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class _Output(BaseModel):
    # How hard a model thinks, and what it may spend on that, is its own affair.
    model_config = ConfigDict(extra="ignore")

    format: _Format | None = None


class MessagesBody(Body):
    """The fields of a message that are understood.

    A policy that thinks does so in its text, so ``thinking`` changes nothing, and no answer has blocks of it.
    """

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "service_tier": ("auto", "standard_only"),
        "container": (),
        "mcp_servers": ([],),
    }
    hints: ClassVar[frozenset[str]] = frozenset({"metadata", "cache_control", "thinking", "context_management"})

    model: str
    max_tokens: int = Field(ge=1)
    messages: list[_Message] = Field(min_length=1)
    system: str | list[_Text] = ""
    stop_sequences: Annotated[list[str], Field(max_length=16)] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: _Choice = _Choice(type="auto")
    output_config: _Output = _Output()

    def asked(self) -> Asked:
        """Return what is asked for.

        Raises:
            ApiError: It cannot be had.
        """
        system = _joined(self.system)
        said = [ChatMessage("system", system)] if system else []
        for message in self.messages:
            said += message.read()
        tools = [] if self.tool_choice.type == "none" else [_schema(tool) for tool in self.tools]
        return Asked(
            messages=said,
            tools=tools,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(stop for stop in self.stop_sequences if stop),
            must_call={"any": "", "tool": self.tool_choice.name or ""}.get(self.tool_choice.type),
            schema=None if self.output_config.format is None else self.output_config.format.schema_,
            schema_param="output_config.format",
            most_calls=1 if self.tool_choice.disable_parallel_tool_use else None,
        )

    def response(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer."""
        answer = answers.answers[0]
        stopped = {"stop_reason": _reason(answer), "stop_sequence": answer.stopped_by}
        return {**self._head(answers), "content": list(_content(answer)), **stopped}

    def stream_of(self, answers: Answers) -> Iterator[bytes]:
        """Yield the events of an answer that is complete."""
        answer, head = answers.answers[0], self._head(answers)
        usage = head["usage"]
        started = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**started, "usage": {**usage, "output_tokens": 0}})
        for index, block in enumerate(_content(answer)):
            is_text = block["type"] == "text"
            empty = {**block, "text": ""} if is_text else {**block, "input": {}}
            yield _event("content_block_start", index=index, content_block=empty)
            if is_text:
                for piece in pieces(block["text"]):
                    yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
            else:
                written = json.dumps(block["input"], ensure_ascii=False)
                delta = {"type": "input_json_delta", "partial_json": written}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ended = {"stop_reason": _reason(answer), "stop_sequence": answer.stopped_by}
        yield _event("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]})
        yield _event("message_stop")

    def _head(self, answers: Answers) -> dict[str, Any]:
        cached = answers.cached_tokens
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "stop_details": None,
            "container": None,
            "usage": {
                "input_tokens": len(answers.prompt_ids) - cached,
                "output_tokens": answers.completion_tokens,
                "output_tokens_details": None,
                "cache_creation": None,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "server_tool_use": None,
                "service_tier": "standard",
                "inference_geo": None,
            },
        }


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _joined(content: str | list[_Text]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _schema(tool: _Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": described}


def _content(answer: Answer) -> Iterator[dict[str, Any]]:
    said = answer.message
    if said.text:
        yield {"type": "text", "text": said.text, "citations": None}
    for call in said.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments), **_DIRECT}


def _reason(answer: Answer) -> str:
    if answer.finish == "stop":
        return "end_turn" if answer.stopped_by is None else "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}[answer.finish]


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
