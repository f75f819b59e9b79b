"""OpenAI's Chat Completions: bodies in, bodies and streams out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from roll.gateway.answer_form import AnyObject, AnyText, NamedSchema
from roll.gateway.errors import ApiError, invalid, unsupported
from roll.gateway.fields import Body
from roll.gateway.records import Answer, Answers, Asked, ChatMessage, FunctionCall
from roll.gateway.streaming import event, pieces

HINTS: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
"""Fields of both of OpenAI's APIs that ask for no other answer."""

_MOST = 128
"""Answers to one call at most, as OpenAI has it."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


_Content = str | list[_Part]


class _Function(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: str


class _Call(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    # Clients send back all that an answer had: annotations, audio, refusal and the like, which are null here.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _Content | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def read(self, number: int) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise invalid(
                f"Missing required parameter: 'messages.{number}.content'.", "messages", "missing_required_parameter"
            )
        calls = tuple(
            FunctionCall(call.function.name, call.function.arguments, call.id) for call in self.tool_calls or ()
        )
        return ChatMessage("system" if self.role == "developer" else self.role, _text_of(self.content), calls)


class _ToolFunction(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: _ToolFunction


class _SchemaFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def schema_of_answer(self) -> Mapping[str, Any]:
        return self.json_schema.schema_of_answer()


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ChatBody(Body):
    """The fields of a chat completion that are understood."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "modalities": (["text"],),
        "store": (False,),
        "service_tier": ("auto", "default"),
        "top_logprobs": (0,),
    }
    hints: ClassVar[frozenset[str]] = HINTS | {"reasoning_effort", "verbosity"}

    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: AnyText | AnyObject | _SchemaFormat = AnyText(type="text")
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    stop: str | Annotated[list[str], Field(max_length=16)] = Field(default_factory=list)
    seed: int | None = None
    n: int = Field(1, ge=1, le=_MOST)
    logprobs: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False

    def asked(self) -> Asked:
        """Return what is asked for.

        Raises:
            ApiError: It cannot be had.
        """
        if self.stream_options is not None and not self.stream:
            raise invalid("'stream_options' is for 'stream': true only.", "stream_options")
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return Asked(
            messages=[message.read(number) for number, message in enumerate(self.messages)],
            tools=[] if self.tool_choice == "none" else [_schema(tool.function) for tool in self.tools],
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(stop for stop in stops if stop),
            seed=self.seed,
            count=self.n,
            logprobs=self.logprobs,
            must_call=must_call(self.tool_choice, "function"),
            schema=self.response_format.schema_of_answer(),
            most_calls=None if self.parallel_tool_calls else 1,
        )

    def response(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer."""
        choices = [
            {
                "index": index,
                "message": _message(answer),
                "finish_reason": answer.finish,
                "logprobs": _logprobs(answer) if self.logprobs else None,
                **({"token_ids": list(answer.completion.token_ids)} if self.return_token_ids else {}),
            }
            for index, answer in enumerate(answers.answers)
        ]
        ids = {"prompt_token_ids": list(answers.prompt_ids)} if self.return_token_ids else {}
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage(answers), **ids}

    def stream_of(self, answers: Answers) -> Iterator[bytes]:
        """Yield the events of an answer that is complete."""
        head = self._head("chat.completion.chunk")
        usage = self.stream_options is not None and self.stream_options.include_usage
        rest = {"usage": None} if usage else {}
        for index, answer in enumerate(answers.answers):
            for delta, finish in _deltas(answer):
                choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
                if self.logprobs and finish is not None:
                    choice["logprobs"] = _logprobs(answer)
                yield event({**head, "choices": [choice], **rest})
        if usage:
            yield event({**head, "choices": [], "usage": _usage(answers)})
        yield b"data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": "fp_roll",
            "service_tier": "default",
        }


def must_call(choice: str | dict[str, Any], *where: str) -> str | None:
    """Return the function that ``tool_choice`` asks for: its name, empty for any, ``None`` where none has to be called.

    Args:
        choice: A word, or an object with the name of a function.
        where: The keys of that object under which the name stands.

    Raises:
        ApiError: It is nothing that is known.
    """
    if isinstance(choice, str):
        return "" if choice == "required" else None
    found: Any = choice if choice.get("type") == "function" else {}
    for key in where:
        found = found.get(key)
        found = found if isinstance(found, dict) else {}
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise unsupported("tool_choice", "only 'auto', 'none', 'required' and a function are known")
    return name


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _text_of(content: _Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _schema(function: _ToolFunction) -> dict[str, Any]:
    parameters = function.parameters or {"type": "object", "properties": {}}
    described = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": described}


def _message(answer: Answer) -> dict[str, Any]:
    said = answer.message
    content = said.text if said.text or not said.calls else None
    calls = {"tool_calls": [_written(call) for call in said.calls]} if said.calls else {}
    return {"role": "assistant", "content": content, "refusal": None, "annotations": [], **calls}


def _written(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield an answer in parts: who speaks, its words, its calls, why it ended."""
    yield {"role": "assistant", "content": "", "refusal": None}, None
    for piece in pieces(answer.message.text):
        yield {"content": piece}, None
    for index, call in enumerate(answer.message.calls):
        written = _written(call)
        arguments = written["function"].pop("arguments")
        yield {"tool_calls": [{"index": index, **written, "function": {**written["function"], "arguments": ""}}]}, None
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}, None
    yield {}, answer.finish


def _logprobs(answer: Answer) -> dict[str, Any]:
    """Return the log-probs of what was sampled, less the token that ends a turn, which has no text."""
    pairs = zip(answer.tokens, answer.completion.logprobs, strict=False)
    content = [
        {"token": text, "logprob": value, "bytes": _bytes(text), "top_logprobs": []} for text, value in pairs if text
    ]
    return {"content": content, "refusal": None}


def _bytes(text: str) -> list[int] | None:
    """Return the bytes of a token, ``None`` for part of a character."""
    return None if "\ufffd" in text else list(text.encode("utf-8", "replace"))


def _usage(answers: Answers) -> dict[str, Any]:
    prompt, sampled = len(answers.prompt_ids), answers.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": answers.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
