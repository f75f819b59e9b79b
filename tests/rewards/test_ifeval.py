from __future__ import annotations

import asyncio
import json

import pytest
from reward_support import asked, verdict

from roll.rewards import Rubric, make_verifier
from roll.rewards.instructions import CHECKS

CASES = [
    ({"type": "word_count", "min": 2, "max": 3}, "don't stop now", "one"),
    ({"type": "sentence_count", "max": 2}, "Mr. Smith pays 1.5 euros. He left", "One. Two! Three?"),
    ({"type": "paragraph_count", "min": 2, "max": 2}, "a\n\nb", "a\nb"),
    ({"type": "paragraph_count", "min": 2, "max": 2}, "a\n\na again\n\n***\n\nb", "a\n***\nb\n***\nc"),
    ({"type": "paragraph_starts_with", "paragraph": 2, "word": "then"}, "First.\n\nThen it went.", "Then.\n\nFirst."),
    ({"type": "keywords", "keywords": ["cat", "dog"]}, "A Dog met a cat.", "A dog met a category."),
    ({"type": "forbidden_words", "words": ["cat"]}, "a category", "a CAT"),
    ({"type": "keyword_frequency", "keyword": "so", "min": 2}, "So it is, so.", "So also"),
    ({"type": "letter_frequency", "letter": "e", "max": 1}, "Eat", "Eel"),
    ({"type": "lowercase"}, "all small, 1", "One capital"),
    ({"type": "uppercase"}, "ALL BIG, 1", "ALL BUT oNE"),
    ({"type": "capital_words", "min": 1, "max": 1}, "a WORD here", "TWO WORDS"),
    ({"type": "json"}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ({"type": "json"}, " [1, 2] ", "42"),
    ({"type": "bullets", "min": 2, "max": 2}, "* a\n - b", "* a\n** b **\n-c"),
    ({"type": "placeholders", "min": 2}, "Dear [name], at [address]", "Dear [name]"),
    ({"type": "highlights", "min": 2}, "*one* and **two**", "*one and 2 * 3 * 4"),
    ({"type": "sections", "marker": "Section", "min": 2}, "Section 1\na\nSection 2\nb", "Section 1 has Section 2"),
    ({"type": "title"}, "<<A title>>\ntext", "<<>>\n<A title>"),
    ({"type": "postscript", "marker": "P.P.S"}, "text\nP.P.S see you", "text P.P.S see you"),
    ({"type": "postscript"}, "text\n\nP.S. see you", "PS see you"),
    ({"type": "starts_with", "phrase": "Dear"}, "\nDear all", "Hello, Dear"),
    ({"type": "ends_with", "phrase": "Is there more?"}, "Text. Is there more?\n", "Is there more? No."),
    ({"type": "no_commas"}, "no comma; none", "one, two"),
    ({"type": "quotation"}, '"quoted"', '"half'),
    ({"type": "two_responses"}, "one ****** two", "same ****** same"),
    ({"type": "repeat_prompt", "prompt": "Say hi."}, "Say hi. Hi!", "Hi! Say hi."),
    ({"type": "one_of", "options": ["My answer is yes.", "My answer is no."]}, "My answer is no.", "no"),
]


def score(response: str, *constraints: dict, **options):
    return verdict(make_verifier("ifeval", options), asked(response, row={"constraints": list(constraints)}))


@pytest.mark.parametrize(("constraint", "good", "bad"), CASES, ids=lambda value: str(value)[:40])
def test_a_constraint_tells_good_from_bad(constraint: dict, good: str, bad: str) -> None:
    assert score(good, constraint).score == 1.0
    assert score(bad, constraint).score == 0.0


def test_every_check_has_a_case() -> None:
    assert {constraint["type"] for constraint, _, _ in CASES} == set(CHECKS)


def test_the_score_is_the_share_or_all() -> None:
    constraints = [{"type": "no_commas"}, {"type": "lowercase"}, {"type": "title"}, {"type": "word_count", "max": 9}]
    assert score("a b c", *constraints).score == 0.75
    strict = score("a b c", *constraints, strict=True)
    assert strict.score == 0.0 and strict.metrics == {"share": 0.75, "all": 0.0}
    assert score("a b <<c>>", *constraints, strict=True).score == 1.0


def test_an_empty_response_satisfies_nothing() -> None:
    assert score("", {"type": "no_commas"}, {"type": "word_count", "max": 5}).score == 0.0


def test_thinking_is_not_checked_unless_asked() -> None:
    response = "<think>a, b</think> text"
    assert score(response, {"type": "no_commas"}).score == 1.0
    assert score(response, {"type": "no_commas"}, keep_thinking=True).score == 0.0


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"type": "word_cuont", "max": 3}, "'word_count'"),
        ({"type": "word_count", "maximum": 3}, "maximum"),
        ({"type": "word_count"}, "min, max or both"),
        ({"type": "word_count", "max": "three"}, "word_count"),
        ({"type": "keywords", "keywords": "cat"}, "list of texts"),
        ({"max": 3}, "no check is called ''"),
    ],
)
def test_a_constraint_that_cannot_be_checked_is_an_error_and_not_zero(constraint: dict, message: str) -> None:
    result = score("some text", constraint)
    assert result.score is None and message in result.error


@pytest.mark.parametrize("row", [{}, {"constraints": []}, {"constraints": "{broken"}, {"constraints": [1]}])
def test_a_row_without_usable_constraints_is_an_error(row: dict) -> None:
    result = verdict(make_verifier("ifeval"), asked("text", row=row | {"id": 5}))
    assert result.score is None and "id 5" in result.error


def test_constraints_may_be_json_text() -> None:
    row = {"constraints": json.dumps([{"type": "no_commas"}])}
    assert verdict(make_verifier("ifeval"), asked("text", row=row)).score == 1.0


@pytest.mark.parametrize("as_text", [False, True])
def test_rows_of_the_ifeval_data_set_are_understood(as_text: bool) -> None:
    empty = {"num_words": None, "relation": None, "keywords": None, "num_sections": None, "section_spliter": None}
    ids = ["punctuation:no_comma", "length_constraints:number_words", "keywords:existence"]
    kwargs = [
        empty,
        empty | {"num_words": 4, "relation": "less than"},
        empty | {"keywords": ["hello"]},
    ]
    row = {"instruction_id_list": ids, "kwargs": json.dumps(kwargs) if as_text else kwargs}
    assert verdict(make_verifier("ifeval"), asked("hello big world", row=row)).score == 1.0
    four_words = verdict(make_verifier("ifeval"), asked("hello big big world", row=row))
    assert four_words.score == pytest.approx(2 / 3)


def test_an_instruction_of_the_data_set_that_is_not_known_is_an_error() -> None:
    row = {"instruction_id_list": ["language:response_langauge"], "kwargs": [{"language": "de"}]}
    result = verdict(make_verifier("ifeval"), asked("hallo", row=row))
    assert result.score is None and "language:response_language" in result.error


@pytest.mark.processes
def test_a_long_response_is_checked_where_that_can_be_stopped() -> None:
    row = {"instruction_id_list": ["detectable_format:number_bullet_lists"], "kwargs": [{"num_bullets": 1}]}

    async def run():
        rubric = Rubric([("ifeval", 1.0, make_verifier("ifeval"))], timeout=1.0)
        quadratic = await rubric.grade(asked("\n" * 100_000 + "x", row=row))
        long = await rubric.grade(asked("* one\n" + "words " * 1000, row=row))
        await rubric.close()
        return quadratic, long

    quadratic, long = asyncio.run(run())
    assert quadratic.score is None and "no verdict after 1 s" in quadratic.error
    assert long.score == 1.0
