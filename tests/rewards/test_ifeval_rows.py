"""Google's own checkers, as ``if_verifiable`` ships them, against ours."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from if_verifiable.ifeval import instructions, instructions_registry

from roll.rewards.ifeval_rows import INSTRUCTIONS, followed, sentences
from roll.rewards.instructions import ConstraintError
from tests.rings import exhaustive_but

pytestmark = pytest.mark.long

COUNTS = st.integers(1, 6)
RELATION = st.sampled_from(["less than", "at least"])
WORDS = st.sampled_from(["cat", "dog", "the", "don't", "P", "ca", "section", "A"])
ARGUMENTS: dict[str, dict[str, st.SearchStrategy]] = {
    "keywords:existence": {"keywords": st.lists(WORDS, min_size=1, max_size=2)},
    "keywords:frequency": {"keyword": WORDS, "frequency": COUNTS, "relation": RELATION},
    "keywords:forbidden_words": {"forbidden_words": st.lists(WORDS, min_size=1, max_size=2)},
    "keywords:letter_frequency": {
        "letter": st.sampled_from("aetcs"), "let_frequency": COUNTS, "let_relation": RELATION
    },
    "length_constraints:number_paragraphs": {"num_paragraphs": COUNTS},
    "length_constraints:number_words": {"num_words": st.integers(1, 12), "relation": RELATION},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": st.integers(1, 3), "nth_paragraph": st.integers(1, 3), "first_word": WORDS
    },
    "detectable_content:number_placeholders": {"num_placeholders": COUNTS},
    "detectable_content:postscript": {"postscript_marker": st.sampled_from(["P.S.", "P.P.S"])},
    "detectable_format:number_bullet_lists": {"num_bullets": COUNTS},
    "detectable_format:constrained_response": {},
    "detectable_format:number_highlighted_sections": {"num_highlights": COUNTS},
    "detectable_format:multiple_sections": {
        "section_spliter": st.sampled_from(["Section", "SECTION", "Day"]), "num_sections": COUNTS
    },
    "detectable_format:json_format": {},
    "detectable_format:title": {},
    "combination:two_responses": {},
    "combination:repeat_prompt": {"prompt_to_repeat": st.sampled_from(["The cat", "dog"])},
    "startend:end_checker": {"end_phrase": st.sampled_from(["the end.", "cat", "dog"])},
    "startend:quotation": {},
    "change_case:capital_word_frequency": {"capital_frequency": COUNTS, "capital_relation": RELATION},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "punctuation:no_comma": {},
}  # fmt: skip
PIECES = st.sampled_from(
    [
        "the cat", "The CAT sat.", "don't", "dog, category", "well-known", "\n", "\n\n", "\n \n", " ", "***", "******",
        "* a point", "- b", "-c", "+ d", "**bold**", "*it*", "**", "[name]", "[", "]", "<<A title>>", "<<", ">>",
        "P.S. bye", "p. s. bye", "P.P.S more", "p.p. s", "Section 1", "SECTION I", "section 2", "Day 3", "Day4", '"',
        "“", "”", "My answer is yes.", "```json", "```", '{"a": 1}', "42", "true", "THE END.", "the end.", "A.I.",
        "USA", "WORLD-WIDE", "x_Y", "été", "1,000", "!", "?", "'", "DON'T", "IT'S", "CANNOT", "A&B", "AT 10:30",
        "NO: YES", "WAIT...", "OH--NO", "(USA)", "'TWAS", "WE'LL GO",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, min_size=1, max_size=9).flatmap(
    lambda parts: st.sampled_from(["", " "]).map(lambda between: between.join(parts))
)


@pytest.fixture(autouse=True, scope="module")
def witness_without_downloads():
    """The witness splits into sentences first, with data it would fetch; for words in capitals that is the same."""
    module = instructions.instructions_util.nltk
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "word_tokenize", functools.partial(module.word_tokenize, preserve_line=True))
    patch.setattr("langdetect.DetectorFactory.seed", 0)
    yield
    patch.undo()


def googles(instruction: str, arguments: dict[str, Any], text: str) -> bool:
    checker = instructions_registry.INSTRUCTION_DICT[instruction](instruction)
    checker.build_description(**arguments)
    return bool(checker.check_following(text))


def test_all_instructions_of_the_data_set_are_known() -> None:
    assert set(INSTRUCTIONS) == set(instructions_registry.INSTRUCTION_DICT)


def test_all_are_compared_with_googles_but_those_that_need_its_downloads() -> None:
    assert set(INSTRUCTIONS) - set(ARGUMENTS) == {
        "language:response_language", "length_constraints:number_sentences"
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "instruction",
    exhaustive_but(sorted(ARGUMENTS), "keywords:forbidden_words", "length_constraints:nth_paragraph_first_word"),
)
def test_a_response_follows_an_instruction_if_googles_program_says_so(instruction: str) -> None:
    @given(text=TEXTS, arguments=st.fixed_dictionaries(ARGUMENTS[instruction]))
    @settings(max_examples=150, deadline=None)
    def agrees(text: str, arguments: dict[str, Any]) -> None:
        if text.strip():
            assert followed(instruction, arguments, text) == googles(instruction, arguments, text)

    agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Der Hund läuft durch den Wald und bellt.", "de"),
        ("The dog runs through the wood.", "en"),
        ("犬が森を走る。", "ja"),
    ],
)
def test_languages_are_told_apart_as_googles_program_does(text: str, language: str) -> None:
    for asked in ("de", "en", "ja"):
        arguments = {"language": asked}
        ours = followed("language:response_language", arguments, text)
        assert ours == googles("language:response_language", arguments, text) == (asked == language)
    assert followed("language:response_language", {"language": "fr"}, "123 456")  # it cannot be told


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("Mr. Smith pays 1.5 euros. He left", 2),
        ("He lives in the U.S. and works. She does too.", 2),
        ('"Come here." He said so... Then he left.', 2),
        ("e.g. this is one sentence", 2),
        ("no end", 1),
        ("A list:\n* one\n* two.", 1),
    ],
)
def test_sentences_are_counted_by_the_punkt_model(text: str, count: int) -> None:
    """The counts are those of NLTK 3.10 with punkt_tab."""
    assert sentences(text) == count
    assert followed("length_constraints:number_sentences", {"num_sentences": count, "relation": "at least"}, text)
    assert followed("length_constraints:number_sentences", {"num_sentences": count + 1, "relation": "less than"}, text)


def test_kwargs_of_other_instructions_are_no_matter_and_missing_ones_an_error() -> None:
    empty = {"num_words": None, "keywords": None}
    assert followed("punctuation:no_comma", empty, "text")
    with pytest.raises(ConstraintError, match="number_words lacks num_words, relation"):
        followed("length_constraints:number_words", empty, "text")
    with pytest.raises(ConstraintError, match="does not fit"):
        followed("keywords:existence", {"keywords": ["("]}, "text")
    with pytest.raises(ConstraintError, match="did you mean 'punctuation:no_comma'"):
        followed("punctuation:no_comas", {}, "text")
