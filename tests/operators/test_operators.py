"""What each operator drops, changes and reports; what goes in stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.common.registry import UnknownNameError
from roll.operators import OPERATORS, TaskRow, operator_of, register_operator, run_operators
from roll.operators.registry import On
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn
from roll.trajectories.store import trajectory_path, write_trajectories


@pytest.fixture
def registry() -> Iterator[None]:
    """Undo what a test registers."""
    with OPERATORS.restored():
        yield


ROWS = [
    TaskRow(0, "a.jsonl:1", {"question": "What is 2 + 2?", "level": 1, "info": {"source": "x"}}),
    TaskRow(1, "a.jsonl:2", {"question": "what  is 2 + 2", "level": 2, "info": {"source": "y"}}),
    TaskRow(2, "a.jsonl:4", {"question": "Prove it.", "level": 0.5, "info": {"source": "x"}}),
]


def member(number: int, score: float | None, response: str = "a", status: Status = Status.COMPLETED) -> Trajectory:
    turn = Turn([1], [2] * (number + 1), [-1.0] * (number + 1), response=response, reward=score or 0.0)
    metrics = {"success": float((score or 0) >= 1), "quality": 0.5}
    return Trajectory("t", "g", number, 7, "start", [turn], status, score, metrics=metrics)


def group(name: str, *scores: float, **options: Any) -> TrajectoryGroup:
    return TrajectoryGroup(name, "t", [member(number, score, **options) for number, score in enumerate(scores)])


GROUPS = [
    group("solved", 1.0, 1.0),
    group("mixed", 1.0, 0.0, 0.0),
    group("lost", 0.0, 0.0, response="b"),
    TrajectoryGroup("broken", "t", [member(0, None, status=Status.ERROR_ENV)]),
]


def left(name: str, on: On, **options: Any) -> list[Any]:
    items: list[Any] = ROWS if on == "tasks" else GROUPS
    before = copy.deepcopy(items)
    kept, (change,) = run_operators([operator_of(name, options, on)], items, lambda item: _name(item))
    assert items == before, "what goes in is not changed"
    assert (change.given, change.dropped) == (len(items), len(items) - len(kept))
    return kept


def _name(item: TaskRow | TrajectoryGroup) -> object:
    return item.number if isinstance(item, TaskRow) else item.group_id


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [
        ("filter", {"column": "level", "least": 1}, [0, 1]),
        ("filter", {"column": "level", "most": 1}, [0, 2]),
        ("filter", {"column": "info.source", "equals": "x"}, [0, 2]),
        ("filter", {"column": "question", "matches": r"\d"}, [0, 1]),
        ("filter", {"column": "question", "matches_not": r"\?"}, [1, 2]),
        ("length", {"column": "question", "least": 10, "most": 14}, [0, 1]),
        ("deduplicate", {"columns": ["question"]}, [0, 2]),
        ("deduplicate", {"columns": ["question", "level"]}, [0, 1, 2]),
        ("curriculum", {"column": "level"}, [2, 0, 1]),
        ("curriculum", {"column": "level", "hardest_first": True}, [1, 0, 2]),
    ],
)
def test_operators_on_tasks(name: str, options: dict[str, Any], numbers: list[int]) -> None:
    assert [row.number for row in left(name, "tasks", **options)] == numbers


def test_a_column_is_written_anew() -> None:
    rows = left("rewrite", "tasks", column="question", template="{question} ({level}) {{end}}")
    assert [row.columns["question"] for row in rows][0] == "What is 2 + 2? (1) {end}"
    assert rows[2].columns["info"] == {"source": "x"}
    with pytest.raises(ValueError, match=r"a.jsonl:1 has no column 'answer'; it has question, level, info"):
        left("rewrite", "tasks", column="question", template="{answer}")


@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("score", {"least": 0.2}, ["solved", "mixed", "broken"]),
        ("score", {"most": 0.5}, ["mixed", "lost", "broken"]),
        ("spread", {"least": 0.1}, ["mixed", "broken"]),
        ("success", {"least": 0.1, "most": 0.9}, ["mixed", "broken"]),
        ("tokens", {"most": 1.5}, ["solved", "lost", "broken"]),
        ("deduplicate_groups", {}, ["solved", "mixed", "lost", "broken"]),
    ],
)
def test_operators_on_experience(name: str, options: dict[str, Any], names: list[str]) -> None:
    assert [each.group_id for each in left(name, "experience", **options)] == names


def test_groups_that_say_the_same_are_there_once() -> None:
    groups = [group("first", 1.0, 0.0), group("again", 0.0, 0.0), group("other", 1.0, 0.0, response="c")]
    kept, _ = run_operators([operator_of("deduplicate_groups", {}, "experience")], groups, _name)
    assert [each.group_id for each in kept] == ["first", "other"]


@pytest.mark.parametrize(("op", "expected"), [("ADD", 2.0), ("subtract", 0.0), ("multiply", 1.0), ("divide", 1.0)])
def test_rewards_are_shaped_by_a_metric_and_the_last_turn_has_the_difference(op: str, expected: float) -> None:
    groups = left("reward_shaping", "experience", metric="quality", op=op, weight=2.0)
    shaped = groups[0].trajectories[0]
    assert shaped.score == shaped.turns[-1].reward == expected
    assert shaped.turns[-1].reward_parts.get("quality", 0.0) == expected - 1.0
    assert groups[3] == GROUPS[3], "what broke has no score"


def test_the_difficulty_of_a_task_is_the_share_of_its_tries_that_failed(tmp_path: Path) -> None:
    tries = {"a.jsonl:1": [1.0, 1.0, 1.0, 0.0], "a.jsonl:4": [0.0, 0.0]}
    stored = []
    for key, scores in tries.items():
        for number, score in enumerate(scores):
            stored.append(member(number, score))
            stored[-1].initial_hash = key
    stored.append(member(9, None, status=Status.ERROR_REWARD))
    stored[-1].initial_hash = "a.jsonl:1"
    write_trajectories(trajectory_path(tmp_path, 1, "val"), stored, step=1, phase="val", run="r")
    rows = left("difficulty", "tasks", run=str(tmp_path))
    assert [row.columns["difficulty"] for row in rows] == [0.25, 0.5, 1.0]
    assert [row.number for row in left("difficulty", "tasks", run=str(tmp_path), most=0.9)] == [0, 1]
    assert [row.number for row in left("difficulty", "tasks", run=str(tmp_path), unknown="drop")] == [0, 2]
    with pytest.raises(ValueError, match="FileNotFoundError.*has no trajectories"):
        left("difficulty", "tasks", run=str(tmp_path / "nowhere"))


def test_operators_are_applied_in_their_order_and_each_says_what_it_did() -> None:
    operators = [
        operator_of("deduplicate", {"columns": ["question"]}, "tasks"),
        operator_of("rewrite", {"column": "question", "template": "Now: {question}"}, "tasks"),
        operator_of("filter", {"column": "level", "least": 0.6}, "tasks"),
    ]
    kept, changes = run_operators(operators, ROWS, _name)
    assert [row.columns["question"] for row in kept] == ["Now: What is 2 + 2?"]
    assert [str(change) for change in changes] == [
        "operator deduplicate: dropped 1 of 3",
        "operator rewrite: dropped 0 of 2, changed 2",
        "operator filter: dropped 1 of 2",
    ]


def test_one_of_your_own_and_what_is_wrong_with_one(registry: None) -> None:
    @register_operator("first", on="tasks")
    def first(rows: list[TaskRow], *, count: int) -> list[TaskRow]:
        return rows[:count]

    @register_operator("twice", on="tasks")
    def twice(rows: list[TaskRow]) -> list[TaskRow]:
        return rows + rows

    assert [row.number for row in left("first", "tasks", count=1)] == [0]
    with pytest.raises(ValueError, match="returned something twice"):
        left("twice", "tasks")
    with pytest.raises(ValueError, match="cannot be given {}.*Its options: count"):
        operator_of("first", {}, "tasks")
    with pytest.raises(ValueError, match="works on tasks, not on experience"):
        operator_of("first", {"count": 1}, "experience")
    with pytest.raises(UnknownNameError, match="Did you mean 'curriculum'"):
        operator_of("curiculum", {}, "tasks")


def test_a_share_of_what_is_within_bounds_waits_for_people_and_the_same_in_every_run() -> None:
    groups = [group(f"g-{number}", float(number % 2)) for number in range(400)]
    review = operator_of("human_review", {"least": 0.5, "share": 0.25}, "experience")
    kept, (change,) = run_operators([review], groups, _name)
    waits = {each.group_id for each in kept if each.waits}
    assert len(kept) == 400 and change.dropped == 0 and change.changed == len(waits)
    assert 30 < len(waits) < 70 and all(int(name[2:]) % 2 for name in waits)
    again, _ = run_operators([review], groups[::-1], _name)
    assert {each.group_id for each in again if each.waits} == waits and not any(each.waits for each in groups)


def test_all_groups_wait_but_those_that_broke_and_a_wrong_option_is_named() -> None:
    assert [each.waits for each in left("human_review", "experience")] == [True, True, True, False]
    mixed = left("human_review", "experience", of="spread", least=0.5)
    assert [each.group_id for each in mixed if each.waits] == ["mixed"]
    for options, why in (
        ({"of": "length"}, "of must be one of score, spread"),
        ({"share": 0}, "share must be above 0"),
    ):
        with pytest.raises(ValueError, match=why):
            left("human_review", "experience", **options)
