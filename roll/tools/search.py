"""The tool ``search``: the passages that suit a query best, of a local corpus by BM25 (`bm25s`), or of a server."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from roll.tools.errors import ToolConfigError, WrongCallError
from roll.tools.registry import register_tool
from roll.tools.retriever import Retriever


@register_tool("search")
class Search:
    """Finds passages in a file of JSON lines, or asks a server for them.

    Args:
        corpus: The file; a line is an object with ``text``, and with ``title`` if it likes. The package has
            ``examples/data/people.jsonl``.
        url: A retrieval server, instead (:class:`roll.tools.retriever.Retriever`).
        results: Passages for a query.
        seconds: For one answer of a server; keep it below ``tool_use.timeout``.
    """

    at_the_same_time = True

    def __init__(
        self, *, corpus: str | None = None, url: str | None = None, results: int = 3, seconds: float = 8.0
    ) -> None:
        if (corpus is None) == (url is None):
            raise ToolConfigError("tool 'search' takes either corpus, a file of JSON lines, or url")
        self.risk = "pure" if url is None else "network"
        self._source: Retriever | _Corpus = (
            _Corpus(corpus, results) if url is None else Retriever(url, results, seconds)
        )

    def __call__(self, query: str) -> str:
        """Search a collection of texts, and return the passages that suit the query best.

        Args:
            query: Words to look for.

        Raises:
            WrongCallError: It has no word.
            UnavailableError: The server is gone.
        """
        if not query.strip():
            raise WrongCallError("the query has no word to look for")
        passages = self._source.passages(query)
        return "\n".join(f"[{number}] {passage}" for number, passage in enumerate(passages, 1)) or "Nothing was found."

    def close(self) -> None:
        """Let go of the connection to a server."""
        self._source.close()


class _Corpus:
    """The passages of a file."""

    def __init__(self, corpus: str | None, results: int) -> None:
        from roll.config.shipped import shipped_data

        path = shipped_data(Path(corpus or "").expanduser()).resolve()
        # Read once for all episodes of this process, and again when it changes.
        self._passages, self._index = _indexed(path, path.stat().st_mtime_ns)
        self._results = min(results, len(self._passages))

    def passages(self, query: str) -> list[str]:
        """Return those that suit a query best.

        Raises:
            WrongCallError: It has no word that is looked for.
        """
        import bm25s

        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False, return_ids=False)
        if not tokens[0]:
            raise WrongCallError("the query has no word to look for")
        found, scores = self._index.retrieve(tokens, k=self._results, show_progress=False)
        return [self._passages[each] for each, score in zip(found[0], scores[0], strict=True) if score > 0]

    def close(self) -> None:
        """The file is kept for other episodes."""


@functools.lru_cache(maxsize=4)
def _indexed(path: Path, changed: int) -> tuple[list[str], Any]:
    try:
        import bm25s
    except ImportError as error:
        raise ToolConfigError("tool 'search' needs bm25s: pip install 'roll-rl[tools]'") from error
    passages = [_passage(path, number, line) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)]
    if not passages:
        raise ToolConfigError(f"{path} has no passages")
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, stopwords="en", show_progress=False), show_progress=False)
    return passages, index


def _passage(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
        return "\n".join([row["title"], row["text"]]) if row.get("title") else str(row["text"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolConfigError(
            f"{path}, line {number}: expected a JSON object with `text`, got {line[:80]!r}"
        ) from error
