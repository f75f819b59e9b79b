"""A run applies operators to its tasks and to what it samples, and says what they did."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from roll.runs.layout import CHECKPOINTS, folder_of
from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import trained_on
from tests.e2e.support import rows, same, train_state

STEPS = {"max_steps": 2, "save_steps": 0, "eval_steps": 0}


def test_groups_are_filtered_and_shaped_before_they_are_learned_from(tmp_path: Path) -> None:
    operators = "[{name: spread, args: {least: 0.001}}, {name: reward_shaping, args: {metric: success, weight: 2.0}}]"
    config = support.small_config(tmp_path / "out", **STEPS, operators__experience=operators)
    run_agentic(config)
    dropped = [int(row["operators/spread/dropped"]) for row in rows(tmp_path / "out")]
    for step, count in enumerate(dropped, start=1):
        kept = trained_on(tmp_path / "out", step)
        assert len(kept) == 16 - 4 * count
        for member in kept:
            assert member.score == pytest.approx(sum(turn.reward for turn in member.turns))
            assert member.turns[-1].reward_parts.get("success", 0.0) == 2.0 * member.success
    assert sum(dropped) > 0


def test_rows_are_filtered_once_and_the_run_says_how_many(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "tasks.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("create table sums (number integer primary key, prompt text, ground_truth text, tag text)")
        values = [(number, f"{number} + 1 =", str(number + 1), "math_rule") for number in range(9)]
        connection.executemany("insert into sums values (?, ?, ?, ?)", values[::-1])
    connection.close()
    (tmp_path / "mine.py").write_text("def is_not(row, number):\n    return row['number'] != number\n")
    mine = {"function": f"{tmp_path / 'mine.py'}:is_not", "fn_kwargs": {"number": 8}}
    operators = [
        {"name": "filter", "args": {"column": "number", "least": 3}},
        {"name": "datasets", "args": {"method": "filter", **mine}},
    ]
    config = rlvr_support.small_config(
        tmp_path / "out", **STEPS, progress="lines", operators__tasks=operators, dynamic_sampling__enable=False,
        actor_train__data_args__file_name=f"sqlite:///{database}#sums",
    )  # fmt: skip
    run_rlvr(config)
    said = "".join(capfd.readouterr())
    assert "operator filter: dropped 3 of 9" in said and "operator datasets: dropped 1 of 6" in said
    keys = {member.initial_hash for step in (1, 2) for member in trained_on(tmp_path / "out", step)}
    assert keys <= {f"sums:{place}" for place in range(4, 9)}, "their places are those in the table"


def prompts_of(folder: Path, steps: int) -> list[list[str]]:
    """Return the keys of the prompts that each step trained on."""
    return [list(dict.fromkeys(each.initial_hash for each in trained_on(folder, step + 1))) for step in range(steps)]


def run_on(folder: Path, keys: dict[str, Any], steps: int, resumed: Path | bool = False) -> None:
    """Answer fourteen prompts, four in a step, so that four steps end an epoch."""
    plain = {"save_steps": 1, "eval_steps": 0, "checkpoint_config__keep": 9, "dynamic_sampling__enable": False}
    run_rlvr(rlvr_support.small_config(folder, **plain, **keys, max_steps=steps, resume_from_checkpoint=resumed))


def goes_on_the_same(folder: Path, keys: dict[str, Any]) -> list[list[str]]:
    """Return the prompts of four steps, which are the same where the run goes on from its second checkpoint."""
    run_on(folder / "whole", keys, 4)
    run_on(folder / "halves", keys, 3)
    run_on(folder / "halves", keys, 4, folder_of(folder / "halves" / CHECKPOINTS, 2))
    prompts = prompts_of(folder / "whole", 4)
    assert prompts_of(folder / "halves", 4) == prompts
    assert same(train_state(folder / "halves", 4), train_state(folder / "whole", 4))
    return prompts


@pytest.mark.exhaustive
def test_the_easiest_tasks_come_first_and_a_run_that_goes_on_has_the_same_ones(tmp_path: Path) -> None:
    run_on(tmp_path / "first", {}, 2)
    tries: dict[str, list[bool]] = defaultdict(list)
    for member in (each for step in (1, 2) for each in trained_on(tmp_path / "first", step)):
        tries[member.initial_hash].append(member.success)
    failed = {key: 1 - sum(each) / len(each) for key, each in tries.items()}
    assert len(failed) == 8 and len(set(failed.values())) > 1
    operators = [
        {"name": "difficulty", "args": {"run": str(tmp_path / "first")}},
        {"name": "curriculum", "args": {"column": "difficulty"}},
    ]
    keys = {"operators__tasks": operators, "actor_train__data_args__shuffle": False}
    prompts = [key for step in goes_on_the_same(tmp_path, keys) for key in step]
    difficulties = [failed.get(key, 0.5) for key in prompts[:14]]
    assert len(set(prompts[:14])) == 14 and difficulties == sorted(difficulties)
    assert prompts[14:] == prompts[:2], "the next epoch begins with the easiest again"


@pytest.mark.exhaustive
def test_tasks_chosen_by_learning_progress_are_the_same_ones_in_a_run_that_goes_on(tmp_path: Path) -> None:
    goes_on_the_same(tmp_path, {"actor_train__data_args__selector": "learning_progress"})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[curriculumm]", "unknown operator 'curriculumm'"),
        ("[{name: filter, args: {colum: x}}]", "cannot be given"),
        ("[success]", "works on experience, not on tasks"),
        ("[{name: datasets, args: {method: filter}}]", "needs a function"),
    ],
)
def test_an_operator_that_cannot_be_is_refused_before_a_model_loads(tmp_path: Path, written: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_agentic(support.small_config(tmp_path / "out", **STEPS, operators__tasks=written))
