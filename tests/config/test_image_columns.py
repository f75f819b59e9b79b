"""Columns of pictures in the words of other systems: verl's default names one that files of text have not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from roll.config import ConfigError, load
from roll.config.rlvr import RLVRConfig

GRADED = {"rewards": {"all": {"verifiers": {"math": 1.0}}}, "adv_estimator": "reinforce"}


def loaded(tree: dict[str, Any]) -> tuple[RLVRConfig, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load(tree, kind=RLVRConfig)
    return config, [str(item.message) for item in caught]


def verl(path: Path, key: str = "images") -> dict[str, Any]:
    return {"data": {"train_files": str(path), "image_key": key}, **GRADED}


@pytest.mark.parametrize(("column", "named"), [("images", "images"), ("text", None)])
def test_verls_column_counts_where_the_file_has_it(tmp_path: Path, column: str, named: str | None) -> None:
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a"], column: ["b"]}), path)
    config, said = loaded(verl(path))
    assert config.actor_train.data_args.image_key == named
    assert any("the files have no such column" in sentence for sentence in said) == (named is None)


def test_verls_column_is_left_open_where_the_files_are_elsewhere(tmp_path: Path) -> None:
    config, said = loaded(verl(tmp_path / "absent.parquet"))
    assert config.actor_train.data_args.image_key is None
    assert any("set actor_train.data_args.image_key where they have pictures" in sentence for sentence in said)


def test_trinitys_column_is_the_same_key() -> None:
    tasks = {"path": "rows.jsonl", "format": {"prompt_key": "question", "image_key": "pictures"}}
    config, _ = loaded({"buffer": {"explorer_input": {"taskset": tasks}}, **GRADED})
    assert config.actor_train.data_args.image_key == "pictures"


def test_trinitys_videos_are_refused() -> None:
    tasks = {"path": "rows.jsonl", "format": {"prompt_key": "question", "video_key": "films"}}
    with pytest.raises(ConfigError, match="a policy is shown text and pictures"):
        loaded({"buffer": {"explorer_input": {"taskset": tasks}}, **GRADED})
