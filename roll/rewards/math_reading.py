r"""What an answer says: one value or several. A text has one reading, so that no answer counts for two.

``5 or 9`` is a list of two, as are ``5, 9``, ``\text{5 and 9}`` and two boxes in a row; it never is its last number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from roll.rewards.math_text import WORD_ENDS, WORD_OPENS, folded, spelled

MOST_CHARACTERS: Final = 2000
"""Longer answers are compared as texts only."""
MOST_ITEMS: Final = 40

_WORD = re.compile(r"\x02([^\x03]*)\x03(?:\s*\^\{?-?\d\}?)?")
_CONJUNCTION = re.compile(r"\x02(?:and|or|AND|OR|And|Or)\x03|\\(?:vee|lor)(?![A-Za-z])")
_EQUALS_WORD = re.compile(r"\x02(?:is|are|equals?)\x03")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_POINTS_THEN_COMMA = re.compile(r"-?[1-9]\d{0,2}(?:\.\d{3})+,\d+")
TIME: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")
"""A time of day, which is no ratio."""
_UNCLEAR = re.compile(
    r"\d\s+[\d.]"  # 5 9
    r"|(?:^|[^A-Za-z}\]^_\\{])\{"  # {5}{9}, 5{9}: a group that belongs to no command
    r"|\\\}\s*(?:\\\{|[\w({])|\d\s*\\\{"  # \{5\}\{9\}
    r"|[)\]]\s*\[|\d\s*\|\s*\d"
    r"|\d\s*_"  # digits of another base
    r"|\d\s*\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}"  # no mixed number, or it would be a sum by now
    r"|\\ldots|[?@#\"`]|:.*:|\\(?:mid|phantom|color|not)(?![A-Za-z])"
)
_REVERSING: Final = frozenset(
    "not no nor never minus negative plus times over least most than more less fewer between from half third quarter "
    "squared cubed except without either neither versus vs maybe perhaps possibly under above below unless if but "
    "instead rather otherwise per cent double twice square cube root base mod modulo".split()
)
"""Words that change what a number says; with them a text is compared as a text."""
_SCALES: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


@dataclass(frozen=True, slots=True)
class Item:
    """One value of an answer.

    Attributes:
        text: The whole of it, for comparison as text.
        sides: What stands between its equals signs, as LaTeX without words; empty if it can only be compared as text.
        words: Its words (units, mostly).
    """

    text: str
    sides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text says.

    Attributes:
        text: All of it, for comparison as text.
        items: Its values in order.
        is_ordered: Whether they stand in round brackets.
        conjunctions: The words between them (``and``, ``or``).
    """

    text: str
    items: tuple[Item, ...]
    is_ordered: bool = False
    conjunctions: frozenset[str] = frozenset()


def read(text: str, *, like: Reading | None = None) -> Reading:
    """Return what ``text`` says.

    Args:
        text: LaTeX or plain text; all of it is the answer.
        like: What it will be compared with: beside one number ``1,22`` has a decimal comma, beside two it is a list.
    """
    if len(text) > MOST_CHARACTERS:
        whole = " ".join(text.split())
        return Reading(whole, (Item(whole),))
    source = spelled(text)
    whole = folded(source)
    source = _without_braces(source)
    if like is not None and len(like.items) == 1 and "," not in like.text:
        source = _decimal_comma(source)
    parts = _parts(source)
    is_ordered = False
    if len(parts) == 1:
        inner, is_ordered = _opened(parts[0])
        if inner is not None and (not is_ordered or (like is not None and len(like.items) > 1)):
            parts = _parts(inner)
        else:
            is_ordered = False
    items = [item for part in parts[: MOST_ITEMS + 1] for item in _items(part)]
    if not items or len(items) > MOST_ITEMS:
        items = [Item(whole)]
    spoken = frozenset(match[0].strip(WORD_OPENS + WORD_ENDS).lower() for match in _CONJUNCTION.finditer(source))
    return Reading(whole, tuple(items), is_ordered, frozenset(word.lstrip("\\") for word in spoken))


def is_broken(text: str) -> bool:
    """Whether braces do not balance: a ground truth that was cut."""
    depth = 0
    for character in re.sub(r"\\.", "", text):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return True
    return depth != 0


def _items(part: str) -> Iterator[Item]:
    """Yield the values of a part: one, or one for each number that words keep apart (``2 hours 30 minutes``)."""
    text = folded(part)
    words = tuple(match[1].casefold() for match in _WORD.finditer(part))
    if any(word in _REVERSING for word in words) or (words and TIME.search(part)):
        yield Item(text, (), words)
        return
    chunks = [_chunks(side) for side in _sides(_EQUALS_WORD.sub("=", part))]
    if len(chunks) == 1 and len(chunks[0]) > 1:
        for chunk, unit in chunks[0]:
            yield Item(folded(f"{chunk} {unit}"), _clear([chunk]), (unit,) if unit else ())
        return
    if any(len(each) > 1 for each in chunks):
        yield Item(text, (), words)
        return
    yield Item(text, _clear([each[0][0] for each in chunks if each]), words)


def _chunks(side: str) -> list[tuple[str, str]]:
    """Return the runs of mathematics between words, each with the words that follow it."""
    found: list[tuple[str, str]] = []
    end = 0
    for match in _WORD.finditer(side):
        _add(found, side[end : match.start()])
        end = match.end()
        word = match[1].casefold()
        if found and word in _SCALES:
            found[-1] = (rf"{found[-1][0]}\cdot 10^{{{_SCALES[word]}}}", found[-1][1])
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {word}".strip())
    _add(found, side[end:])
    return found


def _add(found: list[tuple[str, str]], run: str) -> None:
    run = re.sub(r"\(\s*\)", "", run).strip(" .:;,")
    if re.search(r"[A-Za-z0-9]", run):
        found.append((run, ""))


def _clear(sides: list[str]) -> tuple[str, ...]:
    """Return the sides without outer braces; nothing if one is not clearly one expression."""
    sides = [_without_braces(side) for side in sides]
    if any(_UNCLEAR.search(side) for side in sides):
        return ()
    return tuple(sides)


def _sides(text: str) -> list[str]:
    r"""Split at ``=`` and ``\in`` outside of brackets."""
    marks = [
        position
        for position, character, depth in _scan(text)
        if depth == 0 and character == "=" and text[position - 1 : position] not in tuple("<>!:")
    ]
    member = re.search(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])", text)
    if member and not marks:
        return [text[: member.end() - 3], text[member.end() :]]
    edges = [-1, *marks, len(text)]
    return [text[start + 1 : end].strip() for start, end in zip(edges, edges[1:], strict=False)]


def _parts(text: str) -> list[str]:
    """Split at commas, semicolons, "and" and "or" outside of brackets."""
    if r"\begin" in text:
        return [text]
    conjunctions = {match.start(): match.end() for match in _CONJUNCTION.finditer(text)}
    parts, start = [], 0
    for position, character, depth in _scan(text):
        if depth == 0 and (character in ",;" or position in conjunctions):
            parts.append(text[start:position])
            start = conjunctions.get(position, position + 1)
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _scan(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position, character and depth of brackets; a bracket has the depth outside of it."""
    depth = 0
    for position, character in enumerate(text):
        if character in _CLOSING:
            depth = max(0, depth - 1)
        yield position, character, depth
        if character in _OPENING:
            depth += 1


def _opened(part: str) -> tuple[str | None, bool]:
    """Return what a set or a tuple holds, and whether it is a tuple; ``None`` for anything else."""
    for opening, closing, is_ordered in ((r"\{", r"\}", False), ("(", ")", True)):
        if part.startswith(opening) and part.endswith(closing):
            inner = part[len(opening) : -len(closing)]
            if _balanced(inner) and not re.search(r":|\\mid(?![A-Za-z])|\|", inner):
                return (inner, is_ordered) if not is_ordered or "," in inner else (None, False)
    return None, False


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _without_braces(text: str) -> str:
    """Take plain braces off that hold all of it."""
    text = text.strip()
    for _ in range(4):
        if not (text.startswith("{") and text.endswith("}") and _balanced(text[1:-1]) and not text.endswith(r"\}")):
            break
        text = text[1:-1].strip()
    return text


def _decimal_comma(text: str) -> str:
    number = text.rstrip("% ")
    if _POINTS_THEN_COMMA.fullmatch(number):
        return text.replace(".", "").replace(",", ".")
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(number) else text
