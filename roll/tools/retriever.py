"""A client of retrieval servers over HTTP, in the form of Search-R1, which verl's search tool speaks too."""

from __future__ import annotations

from typing import Any

import httpx

from roll.common.unavailable import UnavailableError


class Retriever:
    """Asks a server for the passages that suit a query best.

    It posts ``{"queries": [text], "topk": number, "return_scores": true}`` and reads ``{"result": [[passage, …]]}``. A
    passage is text, or an object with ``contents`` or ``text`` (and ``title``), also as ``document`` of one that has a
    ``score``.

    Args:
        url: Where it is asked, such as ``http://127.0.0.1:8000/retrieve``.
        results: Passages for a query.
        seconds: For one answer.
    """

    def __init__(self, url: str, results: int, seconds: float) -> None:
        self._url = url
        self._results = results
        self._client = httpx.Client(timeout=seconds)

    def passages(self, query: str) -> list[str]:
        """Return the passages for a query, the best first.

        Raises:
            UnavailableError: The server is gone, does not answer in time, or says that it cannot answer now.
            RuntimeError: It refuses, or answers in another form.
        """
        asked = {"queries": [query], "topk": self._results, "return_scores": True}
        try:
            answer = self._client.post(self._url, json=asked)
        except httpx.TransportError as error:
            raise UnavailableError(f"retriever {self._url}: {type(error).__name__}: {error}") from error
        if answer.status_code == 429 or answer.status_code >= 500:
            raise UnavailableError(f"retriever {self._url} answers {answer.status_code}: {answer.text[:200]}")
        if answer.status_code >= 400:
            raise RuntimeError(f"retriever {self._url} answers {answer.status_code}: {answer.text[:200]}")
        try:
            return [_passage(found) for found in answer.json()["result"][0]][: self._results]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RuntimeError(
                f'retriever {self._url}: expected {{"result": [[passage, …]]}}, got {answer.text[:200]!r}'
            ) from error

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _passage(found: Any) -> str:
    document = found.get("document", found) if isinstance(found, dict) else found
    if isinstance(document, str):
        return document
    text = str(document["contents"] if "contents" in document else document["text"])
    return f"{document['title']}\n{text}" if document.get("title") else text
