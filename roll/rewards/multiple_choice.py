r"""Questions with lettered choices: which letter a response means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from roll.rewards.answers import after_thinking, marked_answer, tidy
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier, row_name

_LETTERS: Final = "ABCDEFGHIJ"
_LETTER = r"[(\[]?\s*(?:\\text(?:bf)?\{)?\(?([A-Za-z])\)?\}?\s*[)\]]?"
_ALONE = re.compile(rf"(?:(?:option|choice|answer)\s*:?\s*)?{_LETTER}(?:\s*[.:,)]\s*.*)?", re.IGNORECASE | re.DOTALL)
_STATED = re.compile(
    r"\b(?:answer|choice|option)\b(?:\s+(?:is|would be|should be|must be))?\s*(?:option\b|choice\b)?\s*[:=]?\s*"
    r"(?:\*\*|\$)?\s*(?:\((?P<paren>[A-Za-z])\)|(?P<bare>[A-Z])(?![\w'’]))",
    re.IGNORECASE,
)
_AFTER_A_LETTER: Final = frozenset(
    "and as because but due for in instead is not of or rather since so that where which while with".split()
)
"""Words in lower case that follow the letter A, and not the article."""

_BLANK_LINES = re.compile(r"\n\s++")
_BLANKS = re.compile(r"[^\S\n]++")
_NEXT_WORD = re.compile(r" +([a-z]+)")
_PARENTHESISED = re.compile(r"\(([A-Z])\)")


@register_verifier("multiple_choice", needs_row=("ground_truth",))
class MultipleChoice:
    r"""1 if the response chooses the right letter, 0 if another or none.

    The letter is looked for in ``<answer>``, ``\boxed{}`` and after ``####``; then in phrases as "the answer is (B)";
    then as the last line alone; then as the last "(B)". A choice may be named by its text where the row has the texts.

    Args:
        choices: Column with the texts of the choices: a list in the order of the letters, or a mapping from letters.
            A row may lack it.
        letters: The letters in use, where a row does not say.
    """

    def __init__(self, choices: str = "choices", letters: str = _LETTERS) -> None:
        if not letters.isalpha() or len(set(letters.upper())) < len(letters):
            raise ValueError(f"letters={letters!r}: give different letters, such as ABCD")
        self._column = choices
        self._letters = letters.upper()

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Find the letter and compare it."""
        texts = self._choices(request.row.get(self._column))
        letters = "".join(texts) or self._letters
        truth = request.ground_truth or ""
        right = _letter(tidy(truth), letters, texts)
        if right is None:
            known = f"the letters {letters}" + (", or the text of a choice" if texts else "")
            return Verdict(
                None,
                error=f"the ground truth {truth!r} of {row_name(request)} cannot be used: it must be one of {known}",
            )
        chosen = chosen_letter(request, letters, texts)
        return Verdict(float(chosen == right), {"answered": float(chosen is not None)})

    def _choices(self, column: Any) -> dict[str, str]:
        if isinstance(column, Mapping):
            # The format of the Hugging Face hub: {"text": [...], "label": [...]}.
            if {"text", "label"} <= set(column):
                return {str(key).upper(): str(text) for key, text in zip(column["label"], column["text"], strict=True)}
            return {str(key).upper(): str(text) for key, text in column.items()}
        if isinstance(column, Sequence) and not isinstance(column, str):
            return {letter: str(text) for letter, text in zip(self._letters, column, strict=False)}
        return {}


def chosen_letter(request: RewardRequest, letters: str, texts: Mapping[str, str]) -> str | None:
    """Return the letter that a response chooses, ``None`` if it chooses none.

    Args:
        request: Whose response is read.
        letters: Letters in use.
        texts: Texts of the choices by letter; may be empty.
    """
    # Runs of blank space would be tried from each of their places; line ends stay, for the last line.
    text = _BLANK_LINES.sub("\n", _BLANKS.sub(" ", after_thinking(request.response)))
    marked = marked_answer(text, cut_off=request.finish_reason == "length")
    if marked is not None:
        return _letter(marked, letters, texts) or _stated(marked, letters)
    stated = _stated(text, letters)
    if stated is not None:
        return stated
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (alone := _letter(tidy(lines[-1]), letters, texts)) is not None:
        return alone
    found = [match for match in _PARENTHESISED.findall(text) if match in letters]
    return found[-1] if found else None


def _letter(answer: str, letters: str, texts: Mapping[str, str]) -> str | None:
    """Return the letter that ``answer`` is, or whose text it is."""
    for letter, text in texts.items():
        if _folded(answer) == _folded(text):
            return letter
    match = _ALONE.fullmatch(answer.strip("$ *"))
    return match[1].upper() if match is not None and match[1].upper() in letters else None


def _stated(text: str, letters: str) -> str | None:
    found = [(match["paren"] or match["bare"]).upper() for match in _STATED.finditer(text) if _is_choice(match)]
    found = [letter for letter in found if letter in letters]
    return found[-1] if found else None


def _is_choice(match: re.Match[str]) -> bool:
    """Tell the letter of "the answer is A" from the article of "the answer is a dog"."""
    bare = match["bare"]
    if bare is None or not bare.isupper():
        return bare is None
    following = _NEXT_WORD.match(match.string, match.end())
    return bare not in "AI" or following is None or following[1] in _AFTER_A_LETTER


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold().rstrip(".")
