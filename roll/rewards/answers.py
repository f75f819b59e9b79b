r"""Finding the answer in a response: ``<answer>…</answer>``, ``\boxed{…}``, ``#### …``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from roll.config.errors import choose_from

PLACES: Final = ("tag", "boxed", "hash", "last")
"""Where an answer is looked for, best first; ``last`` is the last expression of the text."""

_BRACE = re.compile(r"(?P<slashes>\\++)(?P<what>(?:boxed|fbox)\s*\{|[{}])?|(?P<plain>[{}])")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s${}\\]+)")
_CONNECTION = re.compile(
    r"(?:[\s,;.&$~]|\\[()\[\],;:! ]|\\q?quad|\b(?:and|or)\b|\\text\s*\{\s*(?:and|or)\s*\}|[A-Za-z](?:_\w)?\s*=)*"
)
_MOST_BETWEEN: Final = 60
"""Characters between two boxes that may be one answer."""
_HASH = re.compile(r"^[ \t]*####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_WRAPPING = re.compile(r"^(?:\*\*|__)(.*?)(?:\*\*|__)$", re.DOTALL)


def check_places(places: str | Iterable[str]) -> tuple[str, ...]:
    """Return ``places`` as a tuple.

    Raises:
        ValueError: One is unknown, or there is none.
    """
    given = (places,) if isinstance(places, str) else tuple(places)
    for place in given:
        if place not in PLACES:
            raise ValueError(f"answer_in: {place!r} is no place to look for an answer: {choose_from(place, PLACES)}")
    if not given:
        raise ValueError(f"answer_in must name at least one of {', '.join(PLACES)}")
    return given


def after_thinking(response: str) -> str:
    """Return what follows the last ``</think>``; nothing if a ``<think>`` was never closed."""
    _, closed, rest = response.rpartition("</think>")
    if closed:
        return rest
    return "" if "<think>" in response else response


def marked_answer(text: str, places: Iterable[str] = PLACES, *, cut_off: bool = False) -> str | None:
    r"""Return the answer that is marked as such, without its marks; ``None`` if there is none.

    The last mark of a kind counts; a box inside an answer tag is opened. A tag that is not closed reaches to the end
    (its end may have served as stop string), unless the text was cut off.

    Args:
        text: A response, or a ground truth that is a whole solution.
        places: Kinds of marks, in order of preference; ``last`` is not looked at.
        cut_off: Whether the text ends because of a limit.
    """
    for place in places:
        found = None
        if place == "tag":
            found = _tagged(text, cut_off)
        elif place == "boxed":
            found = last_box(text)
        elif place == "hash":
            marks = _HASH.findall(text)
            found = marks[-1] if marks else None
        if found is not None and found.strip():
            return tidy(found)
    return None


def last_box(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{…}`` whose braces balance; ``\boxed 5`` counts as well.

    Boxes that only a comma, "and" or "or" keeps apart are one answer: ``\boxed{1}, \boxed{2}`` gives ``1, 2``. Takes
    time in proportion to the text.
    """
    boxes = sorted(_boxes(text))
    if not boxes:
        bare = _BARE_BOX.findall(text)
        return bare[-1] if bare else None
    start, content, end = boxes.pop()
    parts = [text[content : end - 1]]
    while boxes and boxes[-1][2] <= start and _joins(text[boxes[-1][2] : start]):
        start, content, end = boxes.pop()
        parts.append(text[content : end - 1])
    return ", ".join(reversed(parts))


def _boxes(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield where each box starts, where its content starts, and where it ends."""
    opened: list[tuple[int, int] | None] = []
    for match in _BRACE.finditer(text):
        slashes, what = match["slashes"] or "", match["what"] or match["plain"]
        if what is None or (len(what) == 1 and len(slashes) % 2):  # a line end, or an escaped brace
            continue
        if what == "}":
            if opened and (box := opened.pop()) is not None:
                yield (*box, match.end())
        else:
            opened.append((match.start(), match.end()) if len(what) > 1 else None)


def _joins(between: str) -> bool:
    """Whether two boxes with this between them are one answer."""
    return len(between) <= _MOST_BETWEEN and _CONNECTION.fullmatch(between) is not None


def tidy(answer: str) -> str:
    """Return ``answer`` without white space around it, bold marks and a full stop."""
    answer = _WRAPPING.sub(r"\1", answer.strip()).strip()
    return answer[:-1].rstrip() if answer.endswith(".") and len(answer) > 1 else answer


def _tagged(text: str, cut_off: bool) -> str | None:
    _, opened, rest = text.rpartition("<answer>")
    if not opened:
        return None
    content, closed, _ = rest.partition("</answer>")
    if not closed and cut_off:
        return None
    box = last_box(content)
    return content if box is None else box
