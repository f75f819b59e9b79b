"""Checks of verifiable instructions (after IFEval, arXiv:2311.07911): word counts, formats, keywords."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from roll.config.errors import choose_from

Check = Callable[..., bool]
_Check = TypeVar("_Check", bound=Check)

CHECKS: Final[dict[str, Check]] = {}
"""Checks by the ``type`` of a constraint; each takes the text and the constraint's other entries."""

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Z])(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bMrs)(?<!\be\.g)(?<!\bi\.e)[.!?]+[\"'”’)\]]*(?=\s|$)"
)
_FENCE = re.compile(r"^```[a-zA-Z]*\s*\n(.*?)\n?```$", re.DOTALL)


class ConstraintError(ValueError):
    """A constraint of the data set cannot be checked as it is written."""


def check(name: str) -> Callable[[_Check], _Check]:
    """Register a check under the ``type`` of its constraints."""

    def decorate(function: _Check) -> _Check:
        CHECKS[name] = function
        return function

    return decorate


def satisfied(constraint: Mapping[str, Any], text: str) -> bool:
    """Return whether ``text`` satisfies ``{"type": …, …}``; entries that are ``None`` count as absent.

    Raises:
        ConstraintError: The type is unknown, or its entries do not fit.
    """
    entries = {key: value for key, value in constraint.items() if value is not None}
    kind = str(entries.pop("type", ""))
    if kind not in CHECKS:
        raise ConstraintError(f"no check is called {kind!r}: {choose_from(kind, CHECKS)}")
    function = CHECKS[kind]
    try:
        inspect.signature(function).bind(text, **entries)
    except TypeError as error:
        known = ", ".join(list(inspect.signature(function).parameters)[1:]) or "no entries"
        raise ConstraintError(f"the constraint {kind} does not fit: {error}; it takes {known}") from error
    try:
        return function(text, **entries)
    except (TypeError, AttributeError, ValueError) as error:
        raise ConstraintError(f"the constraint {kind} {entries} does not fit: {error}") from error


def words(text: str) -> list[str]:
    """Return the words of ``text``; ``don't`` and ``well-known`` are one each."""
    return _WORD.findall(text)


def sentences(text: str) -> int:
    """Return how many sentences ``text`` has; a last one without a full stop counts."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return len(ends) + bool(words(text[ends[-1] if ends else 0 :]))


def paragraphs(text: str) -> list[str]:
    """Return the parts between lines of ``***`` if there are any, else those between blank lines."""
    stars = r"(?m)^[ \t]*\*\*\*[ \t]*$"
    parts = re.split(stars if re.search(stars, text) else r"\n\s*\n", text)
    return [part for part in parts if part.strip()]


def _within(count: float, min: float | None, max: float | None) -> bool:
    if min is None and max is None:
        raise ValueError("give min, max or both")
    return (min is None or count >= min) and (max is None or count <= max)


@check("word_count")
def _word_count(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(words(text)), min, max)


@check("sentence_count")
def _sentence_count(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(sentences(text), min, max)


@check("paragraph_count")
def _paragraph_count(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(paragraphs(text)), min, max)


@check("paragraph_starts_with")
def _paragraph_starts_with(text: str, paragraph: int, word: str) -> bool:
    parts = paragraphs(text)
    if not 1 <= paragraph <= len(parts):
        return False
    first = words(parts[paragraph - 1])[:1]
    return bool(first) and first[0].casefold() == word.casefold()


@check("keywords")
def _keywords(text: str, keywords: list[str]) -> bool:
    return all(_occurrences(text, keyword) for keyword in _texts(keywords))


@check("forbidden_words")
def _forbidden_words(text: str, words: list[str]) -> bool:
    return not any(_occurrences(text, word) for word in _texts(words))


@check("keyword_frequency")
def _keyword_frequency(text: str, keyword: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(_occurrences(text, keyword), min, max)


@check("letter_frequency")
def _letter_frequency(text: str, letter: str, min: int | None = None, max: int | None = None) -> bool:
    if len(letter) != 1:
        raise ValueError(f"letter={letter!r} must be one character")
    return _within(text.casefold().count(letter.casefold()), min, max)


@check("lowercase")
def _lowercase(text: str) -> bool:
    return text == text.lower() and text != text.upper()


@check("uppercase")
def _uppercase(text: str) -> bool:
    return text == text.upper() and text != text.lower()


@check("capital_words")
def _capital_words(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(sum(word.isupper() for word in words(text)), min, max)


@check("json")
def _json(text: str) -> bool:
    text = text.strip()
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except ValueError:
        return False
    return isinstance(value, dict | list)


@check("bullets")
def _bullets(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(re.findall(r"^\s*[*+-]\s+\S", text, re.MULTILINE)), min, max)


@check("placeholders")
def _placeholders(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(re.findall(r"\[[^\[\]\n]+\]", text)), min, max)


@check("highlights")
def _highlights(text: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(re.findall(r"(\*{1,2})(?=\S)[^*\n]+?(?<=\S)\1", text)), min, max)


@check("sections")
def _sections(text: str, marker: str, min: int | None = None, max: int | None = None) -> bool:
    return _within(len(re.findall(rf"^\W*{re.escape(marker)}\s+\w+", text, re.MULTILINE)), min, max)


@check("title")
def _title(text: str) -> bool:
    return any(title.strip() for title in re.findall(r"<<([^<>\n]+)>>", text))


@check("postscript")
def _postscript(text: str, marker: str = "P.S.") -> bool:
    return re.search(rf"^\s*{re.escape(marker)}\s*\S", text, re.MULTILINE | re.IGNORECASE) is not None


@check("starts_with")
def _starts_with(text: str, phrase: str) -> bool:
    return text.strip().casefold().startswith(phrase.strip().casefold())


@check("ends_with")
def _ends_with(text: str, phrase: str) -> bool:
    return text.strip().strip('"').casefold().endswith(phrase.strip().casefold())


@check("no_commas")
def _no_commas(text: str) -> bool:
    return not any(comma in text for comma in ",，、")


@check("quotation")
def _quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 2 and (text[0], text[-1]) in {('"', '"'), ("“", "”")}


@check("two_responses")
def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


@check("repeat_prompt")
def _repeat_prompt(text: str, prompt: str) -> bool:
    return text.strip().casefold().startswith(prompt.strip().casefold())


@check("one_of")
def _one_of(text: str, options: list[str]) -> bool:
    return any(option in text for option in _texts(options))


def _occurrences(text: str, phrase: str) -> int:
    """Count ``phrase`` as whole words, case apart."""
    if not phrase.strip():
        raise ValueError("a keyword is empty")
    return len(re.findall(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text, re.IGNORECASE))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str) or not all(isinstance(each, str) for each in value) or not len(value):
        raise ValueError(f"{value!r} must be a list of texts")
    return list(value)
