"""Rows of the IFEval data set (``instruction_id_list`` with ``kwargs``) as constraints of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from roll.config.errors import choose_from
from roll.rewards.instructions import ConstraintError

_Arguments = Mapping[str, Any]


def _bounded(
    kind: str, count: str, relation: str = "relation", **renamed: str
) -> Callable[[_Arguments], dict[str, Any]]:
    """Return a translation of "at least" and "less than" into ``min`` and ``max``."""

    def translate(given: _Arguments) -> dict[str, Any]:
        number = int(given[count])
        bound = {"max": number - 1} if given.get(relation) == "less than" else {"min": number}
        return {"type": kind, **bound, **{ours: given[theirs] for ours, theirs in renamed.items()}}

    return translate


def _exactly(kind: str, count: str) -> Callable[[_Arguments], dict[str, Any]]:
    return lambda given: {"type": kind, "min": int(given[count]), "max": int(given[count])}


def _with(kind: str, **renamed: str) -> Callable[[_Arguments], dict[str, Any]]:
    return lambda given: {"type": kind, **{ours: given[theirs] for ours, theirs in renamed.items()}}


_CONSTRAINED_RESPONSES: Final = ["My answer is yes.", "My answer is no.", "My answer is maybe."]

_TRANSLATIONS: Final[Mapping[str, Callable[[_Arguments], dict[str, Any]]]] = {
    "keywords:existence": _with("keywords", keywords="keywords"),
    "keywords:forbidden_words": _with("forbidden_words", words="forbidden_words"),
    "keywords:frequency": _bounded("keyword_frequency", "frequency", keyword="keyword"),
    "keywords:letter_frequency": _bounded("letter_frequency", "let_frequency", "let_relation", letter="letter"),
    "length_constraints:number_words": _bounded("word_count", "num_words"),
    "length_constraints:number_sentences": _bounded("sentence_count", "num_sentences"),
    "length_constraints:number_paragraphs": _exactly("paragraph_count", "num_paragraphs"),
    "length_constraints:nth_paragraph_first_word": _with(
        "paragraph_starts_with", paragraph="nth_paragraph", word="first_word"
    ),
    "detectable_content:number_placeholders": _bounded("placeholders", "num_placeholders"),
    "detectable_content:postscript": _with("postscript", marker="postscript_marker"),
    "detectable_format:number_bullet_lists": _exactly("bullets", "num_bullets"),
    "detectable_format:number_highlighted_sections": _bounded("highlights", "num_highlights"),
    "detectable_format:multiple_sections": lambda given: {
        "type": "sections", "marker": given["section_spliter"], "min": int(given["num_sections"])
    },
    "detectable_format:json_format": _with("json"),
    "detectable_format:title": _with("title"),
    "detectable_format:constrained_response": lambda given: {"type": "one_of", "options": _CONSTRAINED_RESPONSES},
    "combination:two_responses": _with("two_responses"),
    "combination:repeat_prompt": _with("repeat_prompt", prompt="prompt_to_repeat"),
    "startend:end_checker": _with("ends_with", phrase="end_phrase"),
    "startend:quotation": _with("quotation"),
    "change_case:capital_word_frequency": _bounded("capital_words", "capital_frequency", "capital_relation"),
    "change_case:english_capital": _with("uppercase"),
    "change_case:english_lowercase": _with("lowercase"),
    "punctuation:no_comma": _with("no_commas"),
}  # fmt: skip
"""All of the data set but ``language:response_language``, which needs a language detector."""


def translated(instruction: str, arguments: _Arguments | None) -> dict[str, Any]:
    """Return the constraint for one ``instruction_id`` of the data set.

    Raises:
        ConstraintError: The instruction is unknown, or lacks an argument.
    """
    if instruction not in _TRANSLATIONS:
        raise ConstraintError(
            f"no check for the instruction {instruction!r}: {choose_from(instruction, _TRANSLATIONS)}"
        )
    try:
        return _TRANSLATIONS[instruction](arguments or {})
    except (KeyError, TypeError, ValueError) as error:
        raise ConstraintError(f"the instruction {instruction} lacks an argument: {error}") from error
