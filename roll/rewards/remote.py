"""Grading by a server of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.functions import verdict_from
from roll.rewards.http_json import JsonClient
from roll.rewards.registry import register_verifier


@register_verifier("remote")
class Remote:
    """Posts the request as JSON and reads ``{"score": …}``; further numbers in the answer become metrics.

    The body has the fields of :class:`~roll.rewards.base.RewardRequest`. An answer with ``"score": null`` and an
    ``"error"`` is a response that could not be graded.

    Args:
        url: Where to post.
        api_key_env: Name of the environment variable with the key.
        headers: Further headers.
        timeout: Seconds for one attempt.
        retries: Attempts after the first.
        backoff: Seconds before the first retry, doubled each time.
        concurrency: Requests at a time.
    """

    def __init__(
        self,
        url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 20.0,
        retries: int = 3,
        backoff: float = 0.5,
        concurrency: int = 16,
    ) -> None:
        self._client = JsonClient(
            url,
            api_key_env=api_key_env,
            headers=headers,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            concurrency=concurrency,
        )

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Ask the server."""
        answer = await self._client.post(asdict(request))
        return verdict_from(answer, self._client.url)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
