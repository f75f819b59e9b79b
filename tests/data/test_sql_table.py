"""A table of a database is a set of tasks like a file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from data_support import load

from roll.data.errors import DataError


def database(folder: Path, statement: str, rows: list[tuple[object, ...]]) -> str:
    connection = sqlite3.connect(folder / "tasks.sqlite")
    with connection:
        connection.execute(statement)
        connection.executemany(f"insert into tasks values ({', '.join('?' * len(rows[0]))})", rows)
    connection.close()
    return f"sqlite:///{folder / 'tasks.sqlite'}"


TABLE = "create table tasks (number integer primary key, question text, answer text)"
ROWS: list[tuple[object, ...]] = [(number, f"question {number}", str(number)) for number in (5, 3, 9, 1)]


def test_rows_come_in_the_order_of_the_primary_key_with_their_places(tmp_path: Path) -> None:
    address = database(tmp_path, TABLE, ROWS)
    args = {"file_name": f"{address}#tasks", "prompt": "question", "ground_truth": "answer", "shuffle": False}
    data = load(args, {"math": []})
    found = [(data.at(position).key, data.at(position).ground_truth) for position in range(4)]
    assert found == [("tasks:1", "1"), ("tasks:2", "3"), ("tasks:3", "5"), ("tasks:4", "9")]
    assert data.at(0).row == {"number": 1, "question": "question 1", "answer": "1"}
    assert len(load({**args, "max_samples": 2}, {"math": []})) == 2
    assert "tasks: 4 rows" in list(data.report.lines())


@pytest.mark.parametrize(
    ("statement", "table", "message"),
    [
        (TABLE, "", "names no table"),
        (TABLE, "#questions", "cannot be read: questions"),
        ("create table tasks (number integer, question text, answer text)", "#tasks", "has no primary key"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, statement: str, table: str, message: str) -> None:
    address = database(tmp_path, statement, ROWS)
    with pytest.raises(DataError, match=message):
        load({"file_name": f"{address}{table}", "prompt": "question", "ground_truth": "answer"}, {"math": []})
