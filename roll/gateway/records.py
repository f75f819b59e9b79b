"""What passes between the APIs and the recorder: a call and its answers, in the words of neither API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from roll.generation import Completion

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function that an answer makes.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.
        id: What the result is answered to.
    """

    name: str
    arguments: str
    id: str = ""

    @property
    def content(self) -> tuple[str, str]:
        """Name and arguments, equal where they mean the same however they are written."""
        try:
            return self.name, json.dumps(json.loads(self.arguments), sort_keys=True)
        except ValueError:
            return self.name, self.arguments


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation as an API carries it.

    Attributes:
        role: Who says it.
        text: What is said.
        calls: Calls that the assistant makes.
    """

    role: Role
    text: str
    calls: tuple[FunctionCall, ...] = ()

    def digest(self, before: bytes) -> bytes:
        """Return 16 bytes that stand for a conversation: the one that ``before`` stands for, and this message.

        Names of calls and white space around what the assistant says do not count: clients write them anew.
        """
        text = self.text.strip() if self.role == "assistant" else self.text
        said = json.dumps([self.role, text, [call.content for call in self.calls]])
        return hashlib.blake2b(before + said.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Asked:
    """A call: a conversation, and how to go on from it.

    Attributes:
        messages: The conversation, at least one message.
        tools: Functions that may be called, as JSON schemas in OpenAI's form.
        max_tokens: Tokens of an answer, ``None`` for as many as there may be.
        temperature: As the client wants it; likewise ``top_p`` and ``top_k``.
        top_p: See there.
        top_k: See there.
        stop: Texts that end an answer, and are not part of it.
        seed: The same seed gives the same answer to the same conversation.
        count: How many answers.
        logprobs: Whether the text of each token is wanted.
        must_call: The function that an answer is made to call; empty for any; ``None`` where it need not.
        schema: The JSON schema that an answer has to follow which calls nothing; ``None`` for any text.
        schema_param: The field of the request that has it.
        most_calls: Functions that an answer calls at most; ``None`` for any number.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    count: int = 1
    logprobs: bool = False
    must_call: str | None = None
    schema: Mapping[str, Any] | None = None
    schema_param: str = "response_format"
    most_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        message: As clients read it: calls apart, without the text that ended it.
        finish: Why it ended.
        completion: As it was sampled.
        stopped_by: The text that ended it, if one did.
        tokens: The text of each token, where that was asked for.
    """

    message: ChatMessage
    finish: Finish
    completion: Completion
    stopped_by: str | None = None
    tokens: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one call.

    Attributes:
        prompt_ids: What they were sampled behind.
        answers: As many as were asked for.
    """

    prompt_ids: Sequence[int]
    answers: Sequence[Answer] = field(default_factory=tuple)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.completion.token_ids) for answer in self.answers)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the engine had computed before."""
        return max((answer.completion.cached_tokens for answer in self.answers), default=0)


class Ask(Protocol):
    """Whoever answers calls: the recorder of an episode, or a server that remembers nothing."""

    async def ask(self, asked: Asked) -> Answers:
        """Answer a call.

        Raises:
            ApiError: It is refused.
        """
        ...
