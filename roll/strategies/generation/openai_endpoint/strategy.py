"""Asks a server for the next message of a conversation, and tells apart whose fault it is when none comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roll.config.errors import RunError
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.rewards.http_json import JsonClient, ServerError
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.openai_endpoint.greeting import greet
from roll.strategies.generation.openai_endpoint.options import EndpointOptions, read_options
from roll.strategies.jobs import EngineJob

_SEEDS: Final = 1 << 31
"""Servers keep seeds in 32 bits, with a sign."""

_FAILURES: Final = 8
"""Requests in a row without an answer, each after all its attempts, after which nobody is expected to answer."""

_REFUSALS: Final = frozenset({401, 402, 403, 404})
"""Answers that every other request would get too."""


class EndpointStrategy:
    """A model that a server answers for.

    There are no token ids and no log-probs: a completion has ``text``, and requests need ``messages``. One that gets no
    answer is aborted with the reason, so that it costs its own episode only.

    Args:
        options: Where the server is.
        path: Key path of the options, for errors.

    Raises:
        ConfigError: Nothing answers there, the key is refused, or there is no such model.
    """

    def __init__(self, options: EndpointOptions, path: str) -> None:
        greet(options, path)
        self._options = options
        self._failures = 0
        self._client = JsonClient(
            f"{options.base_url}/chat/completions",
            api_key_env=options.key_variable,
            timeout=options.timeout,
            retries=options.retries,
            backoff=options.backoff,
            concurrency=options.concurrency,
        )

    @classmethod
    def for_job(cls, job: EngineJob) -> EndpointStrategy:
        """Return the engine of a run.

        Raises:
            ConfigError: See the class.
        """
        return cls(read_options(job.strategy_config, job.path), job.path)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the next message of a conversation.

        Raises:
            ValueError: The request has no messages.
            RunError: No further request can be expected to be answered.
        """
        if request.messages is None:
            raise ValueError("an endpoint takes messages, and this request has token ids only")
        if request.pictures:
            raise ValueError("an endpoint is sent text alone, and this request has pictures; use hf_infer")
        try:
            answer = await self._client.post(self._body(request.messages, request.sampling, request.seed))
            completion = _completion(answer)
        except ServerError as error:
            return self._failed(error)
        self._failures = 0
        return completion

    def _body(self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams, seed: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._options.model,
            "messages": [dict(message) for message in messages],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % _SEEDS,
        }
        # OpenAI's own servers do not know these; those of vLLM, SGLang and llama.cpp do.
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
        if sampling.min_p > 0.0:
            body["min_p"] = sampling.min_p
        if sampling.min_new_tokens:
            body["min_tokens"] = sampling.min_new_tokens
        if sampling.repetition_penalty != 1.0:
            body["repetition_penalty"] = sampling.repetition_penalty
        body |= self._options.extra_body
        return {key: value for key, value in body.items() if value is not None}

    def _failed(self, error: ServerError) -> Completion:
        if error.status in _REFUSALS:
            raise RunError(f"The evaluation cannot go on: {error}") from error
        # A refusal of this request is an answer: the server is there.
        self._failures = 0 if error.status is not None and error.status < 500 else self._failures + 1
        if self._failures >= _FAILURES:
            raise RunError(
                f"The evaluation cannot go on: {self._failures} requests in a row were not answered. The last: {error}"
            ) from error
        return Completion([], [], "abort", text="", problem=str(error))

    async def abort(self, request_id: str) -> None:
        """Do nothing: whoever gives a request up cancels it, which closes its connection."""

    async def release(self, session: str) -> None:
        """Do nothing: a server keeps prefixes as it likes."""

    async def pause(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    async def sleep(self) -> None:
        """Do nothing: no device is held here."""

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Do nothing."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Refuse.

        Raises:
            RunError: Always.
        """
        raise RunError(f"{self._options.base_url} takes no weights: an endpoint can be measured, not trained.")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _completion(answer: Any) -> Completion:
    """Return what the server wrote.

    Raises:
        ServerError: It is no chat completion.
    """
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ServerError(f"the server answered no chat completion: {str(answer)[:200]}", status=200) from None
    return Completion([], [], "length" if choice.get("finish_reason") == "length" else "stop", text=text)
