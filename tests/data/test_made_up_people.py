"""Made-up people: who is asked for in validation is asked for nowhere else, and only the collection knows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roll.data.people import FAMILY, GIVEN, JOBS, TOWNS, everybody, held_out, questions
from tests.data.test_problems import DATA, script


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def test_the_shipped_files_are_what_the_script_writes(tmp_path: Path) -> None:
    for path in script().write_people(tmp_path):
        assert path.read_bytes() == (DATA / path.name).read_bytes(), f"run scripts/generate_problems.py: {path.name}"


def test_every_question_has_one_answer_in_the_collection() -> None:
    told = [row["text"] for row in rows("people")]
    assert len(set(told)) == len(told) == len({" ".join(text.split()[:2]) for text in told})
    for split in ("train", "val"):
        for row in rows(f"people_{split}"):
            (passage,) = [text for text in told if " ".join(text.split()[:2]) in row["prompt"]]
            assert row["ground_truth"] in passage.rstrip(".").split()


def test_nobody_is_asked_for_in_training_and_in_validation() -> None:
    people = everybody(300, seed=5)
    train, val = (questions(people, 400, seed=5, validation=validation) for validation in (False, True))
    assert not {q.person.name for q in train} & {q.person.name for q in val}
    assert all(held_out(q.person.name) for q in val)
    share = sum(held_out(person.name) for person in people) / 300
    assert 0.13 < share < 0.27


def test_guessing_pays_little() -> None:
    answers = Counter(row["ground_truth"] for row in rows("people_val"))
    assert max(answers.values()) / answers.total() < 0.1


def test_words_are_distinct_and_more_people_than_names_are_refused() -> None:
    every = [*GIVEN, *FAMILY, *JOBS, *TOWNS]
    assert len(set(every)) == len(every)
    with pytest.raises(ValueError, match="there are 1344 names"):
        everybody(5000, seed=0)
