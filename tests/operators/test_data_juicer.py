"""Operators of Data-Juicer, the real ones, on rows and on groups.

It is no dependency; ``data_juicer.txt`` says how it is installed. Without it all of these tests but one are skipped.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.operators import TaskRow, operator_of, run_operators
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

PEERS = Path(sys.prefix) / "peers"
needs_data_juicer = pytest.mark.skipif(
    not (PEERS / "data_juicer").is_dir(), reason="tests/operators/data_juicer.txt is not installed"
)
ROWS = [
    TaskRow(0, "a.jsonl:1", {"question": "What is 2 + 2?", "level": 1}),
    TaskRow(1, "a.jsonl:2", {"question": "hi", "level": 2}),
    TaskRow(2, "a.jsonl:4", {"question": "What is 2 + 2?", "level": 3}),
    TaskRow(3, "a.jsonl:5", {"question": "See https://example.org/page and more", "level": 4}),
]


@pytest.fixture
def data_juicer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Have Data-Juicer on the path, and, should it install something in spite of all, not in this environment."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(PEERS)])
    # For the life of the process, as what it imports stays: pickling looks at every name of all modules later on, and
    # the process that collects results cannot import the class of the warnings that these names make.
    os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_TARGET", str(tmp_path / "installed")), ("UV_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    yield
    assert not (tmp_path / "installed").exists()


def left(**options: Any) -> list[TaskRow]:
    before = copy.deepcopy(ROWS)
    operator = operator_of("data_juicer", {"text_key": "question", **options}, "tasks")
    kept, (change,) = run_operators([operator], ROWS, lambda row: row.number)
    assert before == ROWS and (change.given, change.dropped) == (4, 4 - len(kept))
    return kept


@needs_data_juicer
def test_a_filter_drops_rows_and_leaves_what_it_measured_as_a_column(data_juicer: None) -> None:
    kept = left(op="text_length_filter", min_len=10, max_len=20)
    assert [(row.number, row.columns) for row in kept] == [
        (number, {**ROWS[number].columns, "text_len": 14}) for number in (0, 2)
    ]


@needs_data_juicer
def test_a_mapper_changes_the_text_and_a_deduplicator_keeps_the_first(data_juicer: None) -> None:
    cleaned = left(op="clean_links_mapper")
    assert cleaned[:3] == ROWS[:3] and cleaned[3].columns["question"].split() == ["See", "and", "more"]
    assert left(op="document_deduplicator") == [ROWS[0], ROWS[1], ROWS[3]]


@needs_data_juicer
def test_what_makes_other_rows_is_refused(data_juicer: None) -> None:
    with pytest.raises(ValueError, match="makes other rows"):
        left(op="naive_grouper")


@needs_data_juicer
def test_a_package_that_is_missing_is_named_and_never_installed(data_juicer: None) -> None:
    if importlib.util.find_spec("scipy") is not None:
        pytest.skip("scipy is here, so that nothing is missing")
    with pytest.raises(ValueError, match="needs the package scipy, which is not installed"):
        left(op="document_minhash_deduplicator")


@needs_data_juicer
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "text_lenght_filter"}, "no operator 'text_lenght_filter' on text. Did you mean 'text_length_filter'"),
        ({"op": "image_size_filter"}, "no operator 'image_size_filter' on text"),
        (
            {"op": "text_length_filter", "minlen": 3},
            "text_length_filter has no option 'minlen'. Did you mean 'min_len'",
        ),
        ({"op": "clean_links_mapper", "batch_mode": False}, "clean_links_mapper cannot be made of"),
    ],
)
def test_what_there_is_not_is_refused_before_anything_runs(
    data_juicer: None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        operator_of("data_juicer", options, "tasks")


def group(name: str, *responses: str, status: Status = Status.COMPLETED) -> TrajectoryGroup:
    members = []
    for number, response in enumerate(responses):
        turns = [
            Turn([1], [2], [-1.0], observation="Say it.", response="ok"),
            Turn([1], [2], [-1.0], response=response),
        ]
        members.append(Trajectory("t", name, number, 7, "start", turns, status, 0.5))
    return TrajectoryGroup(name, "t", members)


GROUPS = [
    group("long", "a long answer", "another long one"),
    group("half", "a long answer", "no"),
    group("short", "no", "no"),
    group("broken", "no", status=Status.ERROR_ENV),
]


@needs_data_juicer
@pytest.mark.parametrize(
    ("share", "key", "names"),
    [(1.0, "response", ["long", "broken"]), (0.5, "text", ["long", "half", "broken"])],
)
def test_groups_stay_whose_members_a_filter_lets_through_and_metrics_say_what_it_measured(
    data_juicer: None, share: float, key: str, names: list[str]
) -> None:
    options = {"op": "text_length_filter", "min_len": 6, "text_key": key, "share": share}
    operators = [
        operator_of("data_juicer_groups", options, "experience"),
        operator_of("reward_shaping", {"metric": "text_len", "weight": 0.01}, "experience"),
    ]
    before = copy.deepcopy(GROUPS)
    kept, changes = run_operators(operators, GROUPS, lambda each: each.group_id)
    assert [each.group_id for each in kept] == names and changes[0].dropped == 4 - len(names) and before == GROUPS
    for member in kept[0].trajectories:
        said = "\n".join(turn.response for turn in member.turns) if key == "text" else member.turns[-1].response
        assert member.metrics["text_len"] == len(said) and member.score == pytest.approx(0.5 + 0.01 * len(said))


@needs_data_juicer
def test_what_a_policy_said_is_not_changed(data_juicer: None) -> None:
    with pytest.raises(ValueError, match="clean_links_mapper is no filter"):
        operator_of("data_juicer_groups", {"op": "clean_links_mapper"}, "experience")
    with pytest.raises(ValueError, match="share must be above 0"):
        operator_of("data_juicer_groups", {"op": "text_length_filter", "share": 0}, "experience")


def test_without_data_juicer_its_operators_are_refused_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "data_juicer"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "data_juicer", None)
    for name, on in (("data_juicer", "tasks"), ("data_juicer_groups", "experience")):
        with pytest.raises(ValueError, match=r"needs Data-Juicer.*pip install 'roll-rl\[data-juicer\]'"):
            operator_of(name, {"op": "text_length_filter"}, on)  # type: ignore[arg-type]
