"""Methods of a dataset of Hugging Face on rows of tasks: what is left, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.operators import TaskRow, operator_of, run_operators

FUNCTIONS = """
def is_long(row, least=12):
    return len(row["question"]) >= least

def shout(row):
    return {"question": row["question"].upper(), "words": len(row["question"].split())}

def first_again(batch):
    return {name: cells[:1] * 2 for name, cells in batch.items()}
"""
ROWS = [
    TaskRow(0, "a.jsonl:1", {"question": "What is 2 + 2?", "level": 1, "info": {"source": "x"}}),
    TaskRow(1, "a.jsonl:2", {"question": "Prove it.", "level": 0.5, "info": {"page": 7}}),
    TaskRow(2, "b.jsonl:1", {"question": "What is 5 - 3?", "choices": ["1", "2"]}),
]


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., list[TaskRow]]:
    (tmp_path / "mine.py").write_text(FUNCTIONS)

    def apply(function: str | None = None, **options: Any) -> list[TaskRow]:
        named = {} if function is None else {"function": f"{tmp_path / 'mine.py'}:{function}"}
        kept, (change,) = run_operators(
            [operator_of("datasets", {**named, **options}, "tasks")], ROWS, lambda row: row.number
        )
        assert (change.given, change.dropped) == (3, 3 - len(kept))
        return kept

    return apply


def test_rows_are_filtered_by_a_function_with_its_own_options(left: Callable[..., list[TaskRow]]) -> None:
    assert left("is_long") == [ROWS[0], ROWS[2]], "what is left is what it was: no column more, no number changed"
    assert left("is_long", fn_kwargs={"least": 99}) == []
    assert left("is_long", fn_kwargs={"least": 0}) == ROWS


def test_only_what_a_function_changed_is_changed(left: Callable[..., list[TaskRow]]) -> None:
    rows = left("shout", method="map")
    assert [row.columns for row in rows] == [
        {**before.columns, "question": before.columns["question"].upper(), "words": words}
        for before, words in zip(ROWS, (5, 2, 5), strict=True)
    ]
    assert [row.key for row in rows] == [row.key for row in ROWS]


def test_methods_without_a_function_order_and_drop(left: Callable[..., list[TaskRow]]) -> None:
    assert [row.number for row in left(method="sort", column_names="question")] == [1, 0, 2]
    assert [row.number for row in left(method="select", indices=[2, 0])] == [2, 0]
    assert left(method="remove_columns", column_names=["level", "info"])[0].columns == {"question": "What is 2 + 2?"}
    assert sorted(row.number for row in left(method="shuffle", seed=3)) == [0, 1, 2]


def test_rows_that_a_function_makes_are_refused(left: Callable[..., list[TaskRow]]) -> None:
    with pytest.raises(ValueError, match="returned something twice"):
        left("first_again", method="map", batched=True)
    with pytest.raises(ValueError, match="makes other rows"):
        left(method="select_columns", column_names=["question"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fliter"}, "no method 'fliter' that changes rows. Did you mean 'filter'"),
        ({"method": "push_to_hub"}, "no method 'push_to_hub' that changes rows"),
        ({}, "Dataset.filter needs a function"),
        ({"function": "json"}, "must be package.module:name"),
        ({"function": "json:dump_it"}, "json has no 'dump_it'"),
        (
            {"function": "json:dumps", "fn_kwarg": {}},
            "unexpected keyword argument 'fn_kwarg'. Its parameters: function",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator_of("datasets", options, "tasks")


def test_cells_of_several_types_are_named() -> None:
    rows = [TaskRow(0, "a:1", {"level": "hard"}), TaskRow(1, "a:2", {"level": 3})]
    with pytest.raises(ValueError, match="do not fit into one dataset.*several types"):
        run_operators([operator_of("datasets", {"method": "shuffle"}, "tasks")], rows, lambda row: row.number)
