r"""The instructions of the IFEval data set (``instruction_id_list`` with ``kwargs``), checked as Google defines them.

What counts is what the authors' program counts (arXiv:2311.07911), odd as it may be: ``don't`` is two words, a keyword
is a regular expression, a paragraph ends with ``***``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from roll.config.errors import choose_from
from roll.rewards.instructions import ConstraintError

_Check = Callable[..., bool]
_CONSTRAINED_RESPONSES: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_RELATIONS: Final = ("less than", "at least")
_FENCES: Final = ("```json", "```Json", "```JSON", "```")
_FIRST_WORD_ENDS = re.compile(r"[.,?!'\"]")
# Where NLTK's word tokenizer, which the data set's own program uses, ends words that may be in capitals.
_BETWEEN_WORDS = re.compile(
    r"[;@#$%&?!*\[\](){}<>\"“”«»‘’„`\u2012-\u2015]|--|''|\.{2,}|[:,](?!\d)"
    r"|(?i:(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))"
)
_CLITIC = re.compile(r"(?<=[^'\s])(?='(?:[sSmMdD]|ll|LL|re|RE|ve|VE)?(?:\s|$)|(?:n't|N'T)(?:\s|$))")
_TWO_IN_ONE = re.compile(r"(?i)\b(can|gim|gon|got|lem|wan)(not|me|na|ta)\b")


def followed(instruction: str, arguments: Mapping[str, Any] | None, text: str) -> bool:
    """Whether ``text`` follows one instruction of the data set.

    Args:
        instruction: Its id, ``punctuation:no_comma``.
        arguments: Its ``kwargs``; entries without a value count as absent.
        text: The response.

    Raises:
        ConstraintError: The instruction is unknown, or an argument is missing or wrong.
    """
    if instruction not in INSTRUCTIONS:
        advice = choose_from(str(instruction), INSTRUCTIONS)
        raise ConstraintError(f"no check for the instruction {instruction!r}: {advice}")
    check = INSTRUCTIONS[instruction]
    wanted = list(inspect.signature(check).parameters.values())[1:]
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    missing = [each.name for each in wanted if each.default is each.empty and each.name not in given]
    if missing:
        raise ConstraintError(f"the instruction {instruction} lacks {', '.join(missing)}")
    try:
        return check(text, **{each.name: given[each.name] for each in wanted if each.name in given})
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise ConstraintError(f"the instruction {instruction} has an argument that does not fit: {error}") from error


def _compared(count: int, relation: str, bound: float) -> bool:
    if relation not in _RELATIONS:
        raise ValueError(f"a relation is 'less than' or 'at least', not {relation!r}")
    return count < int(bound) if relation == "less than" else count >= int(bound)


def _existence(text: str, keywords: list[str]) -> bool:
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in _listed(keywords))


def _frequency(text: str, keyword: str, frequency: float, relation: str) -> bool:
    return _compared(len(re.findall(keyword, text, re.IGNORECASE)), relation, frequency)


def _forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in _listed(forbidden_words))


def _letter_frequency(text: str, letter: str, let_frequency: float, let_relation: str) -> bool:
    return _compared(text.lower().count(letter.lower()), let_relation, let_frequency)


def _response_language(text: str, language: str) -> bool:
    return _language(text) in (None, language)


def _number_sentences(text: str, num_sentences: float, relation: str) -> bool:
    return _compared(sentences(text), relation, num_sentences)


def _number_paragraphs(text: str, num_paragraphs: float) -> bool:
    paragraphs = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    if not all(paragraphs[1:-1]):
        return False
    return sum(map(bool, paragraphs)) == int(num_paragraphs)


def _number_words(text: str, num_words: float, relation: str) -> bool:
    return _compared(len(re.findall(r"\w+", text)), relation, num_words)


def _nth_paragraph(text: str, num_paragraphs: float, nth_paragraph: float, first_word: str) -> bool:
    paragraphs = text.split("\n\n")
    full = sum(1 for paragraph in paragraphs if paragraph.strip())
    index = int(nth_paragraph) - 1
    if not 0 <= index < full or not paragraphs[index].strip():
        return False
    word = paragraphs[index].split()[0].lstrip("'").lstrip('"')
    return full == int(num_paragraphs) and _FIRST_WORD_ENDS.split(word)[0].lower() == first_word.lower()


def _placeholders(text: str, num_placeholders: float) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= int(num_placeholders)


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, marker.lower()), text.lower()) is not None


def _bullets(text: str, num_bullets: float) -> bool:
    stars = re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == int(num_bullets)


def _highlights(text: str, num_highlights: float) -> bool:
    single = [part for part in re.findall(r"\*[^\n*]*\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n*]*\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double) >= int(num_highlights)


def _sections(text: str, section_spliter: str, num_sections: float) -> bool:
    return len(re.findall(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) >= int(num_sections)


def _json(text: str) -> bool:
    text = text.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    return any(title.lstrip("<").rstrip(">").strip() for title in re.findall(r"<<[^\n]+>>", text))


def _constrained_response(text: str) -> bool:
    return any(response in text for response in _CONSTRAINED_RESPONSES)


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    if not all(parts[1:-1]):
        return False
    full = [part for part in parts if part]
    return len(full) == 2 and full[0] != full[1]


def _repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _end(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _capital_words(text: str, capital_frequency: float, capital_relation: str) -> bool:
    apart = _TWO_IN_ONE.sub(r" \1 \2 ", _CLITIC.sub(" ", _BETWEEN_WORDS.sub(" ", text)))
    return _compared(sum(word.isupper() for word in apart.split()), capital_relation, capital_frequency)


def _all_capitals(text: str) -> bool:
    return text.isupper() and _language(text) in (None, "en")


def _no_capitals(text: str) -> bool:
    return text.islower() and _language(text) in (None, "en")


def _no_comma(text: str) -> bool:
    return "," not in text


def _listed(texts: Any) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"a list of texts is wanted, not {texts!r:.80}")
    return list(texts)


def sentences(text: str) -> int:
    """Return how many sentences ``text`` has, by the Punkt model for English."""
    import punkt

    return len(punkt.sent_tokenize(text))


def _language(text: str) -> str | None:
    """Return the language of ``text`` as ISO 639-1; ``None`` if it cannot be told, which counts as the right one."""
    from langdetect import LangDetectException

    detector = _detectors().create()
    detector.append(text)
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


@cache
def _detectors() -> Any:
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.set_seed(0)  # a detector draws at random
    factory.load_profile(PROFILES_DIRECTORY)
    return factory


INSTRUCTIONS: Final[Mapping[str, _Check]] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": _response_language,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:number_words": _number_words,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained_response,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _end,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _all_capitals,
    "change_case:english_lowercase": _no_capitals,
    "punctuation:no_comma": _no_comma,
}
"""All 25 instructions of the data set."""
