"""Files of overrides, as launch commands have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config.errors import ConfigError
from roll.convert.reading.overrides import read_overrides, tree_of


def test_the_first_line_is_the_program_and_the_rest_sets_keys(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_text("python3 -m verl.trainer.main_ppo\n# a remark\ndata.train_batch_size=8\n+trainer.nnodes=1\n\n")

    foreign = read_overrides(path)

    assert foreign.program == "verl.trainer.main_ppo"
    assert foreign.tree == {"data": {"train_batch_size": 8}, "trainer": {"nnodes": 1}}


@pytest.mark.parametrize(
    ("override", "tree"),
    [
        ("a.b=1e-6", {"a": {"b": 1e-6}}),
        ("++a.b=[console,wandb]", {"a": {"b": ["console", "wandb"]}}),
        ("a='x y'", {"a": "x y"}),
        ('a="x=y"', {"a": "x=y"}),
        ("a=null", {"a": None}),
        ("a=True", {"a": True}),
        ("a={b: 1, c: [2, 3]}", {"a": {"b": 1, "c": [2, 3]}}),
        ("a=/data/step=3/model", {"a": "/data/step=3/model"}),
        ("a=['/x/y.parquet','/z.parquet']", {"a": ["/x/y.parquet", "/z.parquet"]}),
        ("a=", {"a": ""}),
        ("a=${b}", {"a": "${b}"}),
    ],
)
def test_values_are_read_in_hydras_grammar(override: str, tree: object) -> None:
    assert tree_of([override]) == tree


def test_the_later_wins_a_tilde_removes_and_a_chosen_file_may_have_keys_of_its_own() -> None:
    base = {"a": {"b": 1}}

    assert tree_of(["a.b=2", "a.b=3", "c=1", "~c", "engine=fsdp", "engine.size=2"], base) == {
        "a": {"b": 3},
        "engine": {"size": 2},
    }
    assert base == {"a": {"b": 1}}


def test_a_line_that_is_no_override_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_text("verl.trainer.main_ppo\na=1\nnonsense\n")

    with pytest.raises(ConfigError, match=r"line 3 = 'nonsense'"):
        read_overrides(path)
