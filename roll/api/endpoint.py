"""A policy behind an OpenAI-compatible endpoint: messages in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.strategies.generation.openai_endpoint.description import OPENAI_ENDPOINT

_ROOM = 1 << 20
"""Tokens of a conversation: here nobody counts them, and the server has a limit of its own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model that a server answers for; :func:`endpoint`.

    Attributes:
        options: What :class:`roll.strategies.generation.openai_endpoint.options.EndpointOptions` says.
    """

    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<endpoint {self.options['base_url']}, model {self.options['model']}>"

    def keys(self) -> dict[str, Any]:
        """Return the keys of a configuration whose engine it is."""
        engine = "actor_infer.strategy_args"
        return {
            "pretrain": str(self.options["model"]),
            "sequence_length": _ROOM,
            f"{engine}.strategy_name": OPENAI_ENDPOINT.name,
            f"{engine}.strategy_config": None,  # options of another engine are none of this one
            **{f"{engine}.strategy_config.{key}": value for key, value in self.options.items()},
        }


def endpoint(
    url: str,
    model: str,
    *,
    api_key_env: str | None = None,
    timeout: float = 120.0,
    retries: int = 5,
    backoff: float = 0.5,
    concurrency: int = 16,
    extra_body: Mapping[str, Any] | None = None,
) -> Endpoint:
    """Return a policy behind an OpenAI-compatible endpoint, for :func:`roll.evaluate`.

    The server applies its own chat template: there are no token ids and no log-probs, so it can be measured, not
    trained.

    Example:
        >>> judged = roll.endpoint("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")
        >>> roll.evaluate(judged, env="SimpleSokoban", episodes=64)

    Args:
        url: Up to ``/v1``.
        model: Its name there.
        api_key_env: The environment variable that holds the key; by default ``OPENAI_API_KEY``, where that is set.
        timeout: Seconds for one attempt at a response.
        retries: Attempts after the first, where the connection is lost or the server says "later" (429, 5xx).
        backoff: Seconds before the first retry, doubled each time; a ``Retry-After`` comes first.
        concurrency: Requests at a time.
        extra_body: Further fields of each request; ``None`` as a value leaves out one that is there.
    """
    options = {
        "base_url": url,
        "model": model,
        "api_key_env": api_key_env,
        "timeout": timeout,
        "retries": retries,
        "backoff": backoff,
        "concurrency": concurrency,
        "extra_body": None if extra_body is None else dict(extra_body),
    }
    return Endpoint({key: value for key, value in options.items() if value is not None})
