"""Posting JSON to a server: retries where they can help, readable errors where they cannot."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from roll.rewards.concurrency import ConcurrencyLimit, PerLoop

if TYPE_CHECKING:
    import httpx

_PASSING: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT: Final = 30.0


class ServerError(RuntimeError):
    """A server gave no usable answer.

    Attributes:
        status: The HTTP status of the last answer, ``None`` where there was none at all.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class JsonClient:
    """Posts JSON to one URL.

    Args:
        url: Where to.
        api_key_env: Name of the environment variable that holds the key, sent as bearer token; ``None`` for none. The
            variable is read at the first request.
        headers: Further headers.
        timeout: Seconds for one attempt.
        retries: Attempts after the first, for lost connections and for answers that say "later" (429, 5xx).
        backoff: Seconds before the first retry; each further one doubles them. A ``Retry-After`` comes first.
        concurrency: Requests at a time.

    Raises:
        ValueError: A number is out of range, or the URL is none.
        ImportError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 20.0,
        retries: int = 3,
        backoff: float = 0.5,
        concurrency: int = 16,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL: it must start with http:// or https://")
        if not timeout > 0 or retries < 0 or backoff < 0 or concurrency < 1:
            raise ValueError("timeout must be above 0, retries and backoff at least 0, concurrency at least 1")
        if importlib.util.find_spec("httpx") is None:
            raise ImportError("this verifier needs the package httpx: pip install 'httpx>=0.27'")
        self.url = url
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._concurrency = concurrency
        self._limit = ConcurrencyLimit(concurrency)
        self._client: PerLoop[httpx.AsyncClient] = PerLoop(self._connect)

    async def post(self, payload: Mapping[str, Any]) -> Any:
        """Return the JSON that the server answers.

        Raises:
            ServerError: No answer after all attempts, a refusal, or something that is no JSON.
        """
        import httpx

        content = json.dumps(payload, default=str).encode()
        problem, status = "", None
        async with self._limit.slot():
            for attempt in range(self._retries + 1):
                wait = min(_LONGEST_WAIT, self._backoff * 2**attempt)
                try:
                    answer = await self._client.get().post(self.url, content=content)
                except httpx.TransportError as error:
                    problem, status = f"{type(error).__name__} {error}".strip(), None
                else:
                    if answer.status_code not in _PASSING:
                        return self._read(answer)
                    problem, status = (
                        f"status {answer.status_code} {_shortened(answer.text)}".strip(),
                        answer.status_code,
                    )
                    wait = _retry_after(answer.headers.get("retry-after"), wait)
                if attempt < self._retries:
                    await asyncio.sleep(wait)
        raise ServerError(f"{self.url} gave no answer in {self._retries + 1} attempts: {problem}", status=status)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        client = self._client.take()
        if client is not None:
            await client.aclose()

    def _connect(self) -> httpx.AsyncClient:
        import httpx

        headers = {"content-type": "application/json", **self._headers}
        if self._api_key_env is not None:
            key = os.environ.get(self._api_key_env)
            if not key:
                raise ServerError(
                    f"the environment variable {self._api_key_env} is not set: export it with the key for {self.url}"
                )
            headers["authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._concurrency)
        return httpx.AsyncClient(headers=headers, timeout=self._timeout, limits=limits)

    def _read(self, answer: httpx.Response) -> Any:
        if answer.status_code in (401, 403):
            source = f"the key in {self._api_key_env}" if self._api_key_env else "a request without key"
            hint = "check it" if self._api_key_env else "name its environment variable in api_key_env"
            raise ServerError(
                f"{self.url} refused {source} (status {answer.status_code} {_shortened(answer.text)}): {hint}",
                status=answer.status_code,
            )
        if not answer.is_success:
            message = f"{self.url} answered status {answer.status_code}: {_shortened(answer.text)}"
            raise ServerError(message, status=answer.status_code)
        try:
            return answer.json()
        except ValueError as error:
            message = f"{self.url} answered no JSON: {_shortened(answer.text)}"
            raise ServerError(message, status=answer.status_code) from error


def _retry_after(header: str | None, otherwise: float) -> float:
    """Return the seconds a server asks to wait; dates, which it may also send, are not read."""
    return min(_LONGEST_WAIT, float(header)) if header is not None and header.isdecimal() else otherwise


def _shortened(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
