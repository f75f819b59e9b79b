"""The gateway as a web application: who may ask, how much and how long, and which API answers in which form.

It is meant for the loopback interface, which every program of the machine can reach, agents that run wild included:
each episode has a key of its own, and what one does with it harms no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from roll.gateway import anthropic_messages, openai_chat, openai_responses
from roll.gateway.errors import ApiError
from roll.gateway.recorder import over
from roll.gateway.records import Answers, Ask, Asked

_NO_RETRY: Final = {"x-should-retry": "false"}
"""What the clients of OpenAI and Anthropic read: the same call would be refused again."""
_RETRIES: Final = "x-stainless-retry-count"
"""What the same clients say when they ask again: how often they have."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What one client may use.

    Attributes:
        body_bytes: Of one request.
        body_seconds: Until a request has arrived as a whole.
        calls_at_once: Of one key.
    """

    body_bytes: int = 16 << 20
    body_seconds: float = 30.0
    calls_at_once: int = 64


class Parsed(Protocol):
    """A request that was understood, in the form of its API."""

    @property
    def model(self) -> str:
        """Which model is asked."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the answer comes as events."""
        ...

    def asked(self) -> Asked:
        """Return what is asked for."""
        ...

    def response(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer."""
        ...

    def stream_of(self, answers: Answers) -> Iterator[bytes]:
        """Yield the events of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Api:
    """An API: how its bodies are read, and how it writes a refusal."""

    read: Callable[[Mapping[str, Any]], Parsed]
    refusal: Callable[[ApiError], dict[str, Any]]


APIS: Final[Mapping[str, Api]] = {
    "/v1/chat/completions": Api(openai_chat.ChatBody.read, openai_chat.error_body),
    "/v1/responses": Api(openai_responses.ResponsesBody.read, openai_chat.error_body),
    "/v1/messages": Api(anthropic_messages.MessagesBody.read, anthropic_messages.error_body),
}
"""What is answered, by path."""


def how_to_ask(models: Sequence[str], url: str, key: str, longest: int) -> Iterator[str]:
    """Yield what a person needs to ask: the first of the models is the policy itself."""
    yield f"{models[0]} answers at {url}; Ctrl-C ends it."
    yield f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}"
    yield f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}"
    named = f"model{'s' if len(models) > 1 else ''} {', '.join(models)}"
    yield f"  {', '.join(APIS)}; {named}, {longest:,} tokens"


@dataclass(slots=True)
class _Client:
    """Whoever has a key.

    Attributes:
        asks: Who answers, by the name of the model; the first for whatever name there is no other for.
        running: Calls that are being answered.
        answered: The last answers, by what was asked: for a client that lost its connection and asks again.
    """

    asks: Mapping[str, Ask]
    running: int = 0
    answered: dict[bytes, Answers] = field(default_factory=dict)

    def ask_of(self, model: str) -> Ask:
        """Return who answers for a model."""
        return self.asks.get(model) or next(iter(self.asks.values()))

    def keep(self, asked: bytes, answers: Answers, most: int) -> None:
        """Keep an answer, and forget the oldest of more than ``most``."""
        self.answered[asked] = answers
        if len(self.answered) > most:
            del self.answered[next(iter(self.answered))]


class Gateway:
    """Answers whoever has a key; :attr:`app` is the web application.

    Args:
        model: The name of the policy.
        limits: What one client may use.
        only_model: Whether calls of models with other names are refused. Agents name the model that they were written
            for, and get this one.
    """

    def __init__(self, model: str, limits: GatewayLimits | None = None, *, only_model: bool = False) -> None:
        self.model = model
        self._limits = limits or GatewayLimits()
        self._only_model = only_model
        self._clients: dict[bytes, _Client] = {}
        self._began = int(time.time())
        posts = [Route(path, self._endpoint(api), methods=["POST"]) for path, api in APIS.items()]
        models = [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._one_model, methods=["GET"]),
        ]
        handlers = {404: _not_found, 405: _not_found, Exception: _failed}
        self.app = Starlette(routes=[*posts, *models], exception_handlers=handlers)

    def open(self, ask: Ask, key: str | None = None, others: Mapping[str, Ask] | None = None) -> str:
        """Let ``ask`` answer whoever has a key, which is returned; ``others`` answer for models of their names."""
        key = key or f"sk-roll-{secrets.token_urlsafe(24)}"
        self._clients[_digest(key)] = _Client({self.model: ask, **(others or {})})
        return key

    def close(self, key: str) -> None:
        """Answer this key no longer."""
        self._clients.pop(_digest(key), None)

    def _client(self, request: Request) -> _Client:
        """Return whoever has the key of a request.

        Raises:
            ApiError: Nobody has.
        """
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        # What is looked up is a digest: how long that takes says nothing of a key.
        client = self._clients.get(_digest(key))
        if client is None:
            what = "Incorrect API key provided" if key else "You didn't provide an API key"
            message = (
                f"{what}: an episode has a key of its own, in OPENAI_API_KEY and ANTHROPIC_API_KEY, while it runs."
            )
            raise ApiError(401, message, code="invalid_api_key")
        return client

    def _endpoint(self, api: Api) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                client = self._client(request)
                if client.running >= self._limits.calls_at_once:
                    message = f"{client.running} calls of this key are being answered. Wait for one of them."
                    raise ApiError(429, message, code="rate_limit_exceeded")
                client.running += 1
                try:
                    content = await self._content(request)
                    parsed = api.read(_object(content))
                    self._check_model(parsed.model, client)
                    answers = await self._answers(request, client, parsed, content)
                finally:
                    client.running -= 1
            except ApiError as error:
                return JSONResponse(api.refusal(error), error.status, _headers(error))
            if parsed.stream:
                return StreamingResponse(parsed.stream_of(answers), media_type="text/event-stream")
            return _json(parsed.response(answers))

        return answer

    async def _answers(self, request: Request, client: _Client, parsed: Parsed, content: bytes) -> Answers:
        """Return the answers to a call: those that were given before, where the client says that it asks again.

        What was sampled for a call is recorded once, also where its answer got lost on the way to the client.
        """
        asked = hashlib.sha256(request.url.path.encode() + content).digest()
        if request.headers.get(_RETRIES, "0") != "0" and (given := client.answered.get(asked)) is not None:
            return given
        answers = await _until_gone(request, client.ask_of(parsed.model), parsed.asked())
        client.keep(asked, answers, self._limits.calls_at_once)
        return answers

    async def _content(self, request: Request) -> bytes:
        """Return what a request carries.

        Raises:
            ApiError: It is too large, or takes too long to arrive.
        """
        most, content = self._limits.body_bytes, bytearray()
        too_large = ApiError(413, f"The request is larger than {most:,} bytes.", code="request_too_large")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    content += part
                    if len(content) > most:
                        raise too_large
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise ApiError(408, f"The request did not arrive within {seconds:g} s.", code="timeout") from None
        except ClientDisconnect:
            raise ApiError(499, "The client is gone.", code="client_gone") from None
        return bytes(content)

    def _check_model(self, name: str, client: _Client) -> None:
        if self._only_model and name not in client.asks:
            raise _absent(name, client)

    async def _models(self, request: Request) -> Response:
        try:
            client = self._client(request)
        except ApiError as error:
            return JSONResponse(openai_chat.error_body(error), error.status)
        return JSONResponse({"object": "list", "data": [self._described(name) for name in client.asks]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            client = self._client(request)
            if name not in client.asks:
                raise _absent(name, client)
        except ApiError as error:
            return JSONResponse(openai_chat.error_body(error), error.status)
        return JSONResponse(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "roll"}


def _absent(name: str, client: _Client) -> ApiError:
    there = ", ".join(f"'{model}'" for model in client.asks)
    message = f"The model '{name}' does not exist: this server has {there}."
    return ApiError(404, message, code="model_not_found", param="model")


def _object(content: bytes) -> dict[str, Any]:
    """Return the JSON object that a request carries.

    Raises:
        ApiError: It is none.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"We could not parse the JSON body of your request: {error}."
        raise ApiError(400, message, code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body of a request is a JSON object.", code="invalid_json")
    return body


async def _until_gone(request: Request, ask: Ask, asked: Asked) -> Answers:
    """Return the answers, and give them up when the client is gone.

    Raises:
        ApiError: The call is refused, or nobody waits for its answer.
    """
    answering = asyncio.ensure_future(ask.ask(asked))
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ApiError(499, "The client is gone.", code="client_gone")
        if answering.cancelled():
            raise over()
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _headers(error: ApiError) -> dict[str, str]:
    """Return what a refusal says to clients: whether to come again, and where it was not read to its end, to leave."""
    if error.status == 429:
        return {"retry-after": "1"}
    return {**_NO_RETRY, "connection": "close"} if error.status in (408, 413) else dict(_NO_RETRY)


def _json(body: Mapping[str, Any]) -> Response:
    # What a model wrote may hold halves of characters, which no encoding takes.
    content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    known = ", ".join([*APIS, "/v1/models"])
    message = f"Invalid URL ({request.method} {request.url.path}): this server answers {known}."
    refusal = ApiError(404, message, code="unknown_url")
    return JSONResponse(openai_chat.error_body(refusal), 404, _NO_RETRY)


async def _failed(request: Request, error: Exception) -> Response:
    message = f"The server failed: {type(error).__name__}. What happened is shown where it runs."
    return JSONResponse(openai_chat.error_body(ApiError(500, message, code="server_error")), 500, _NO_RETRY)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
