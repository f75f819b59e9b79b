"""Prompts in another process: the same rows, tokens and names, whatever they are read from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.config.rlvr import RLVRConfig
from roll.data.prompts import Prompt
from roll.data.selecting import ProgressSelector
from roll.data.table import PromptTable
from roll.pipelines.sampling.prompt_data import load_data, prompts_elsewhere
from roll.schedulers.answers import prompt_source, row_source
from roll.workers.loading import Text, load_text

CLASS = """
import threading

class Sums:
    def __init__(self, last):
        self.last, self.lock = last, threading.Lock()  # which cannot be sent anywhere

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"prompt": f"What is {index} + {self.last}?", "ground_truth": str(index + self.last)}
"""


def config(**data: Any) -> RLVRConfig:
    rewards = {"sums": {"tag_included": ["sums"], "verifiers": {"math": 1.0}}}
    return RLVRConfig(pretrain="toy_math", rewards=rewards, prompt_length=24, actor_train={"data_args": data})


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text(RLVRConfig(pretrain="toy_math", rewards={"all": {}}))


def sent(given: RLVRConfig, table: PromptTable, text: Text) -> Sequence[Prompt]:
    """Return the prompts of a table as another process makes them."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    made: Sequence[Prompt] = cloudpickle.loads(cloudpickle.dumps(prompts_elsewhere(given, table)))(text)
    return made


def test_rows_of_files_are_the_same_prompts_there_cut_ones_and_token_ids_too(text: Text, tmp_path: Path) -> None:
    ids = text.renderer.initial_ids([{"role": "user", "content": "What is 12 + 7?"}])
    rows = [
        {"prompt": "What is 1 + 2?", "ground_truth": "3", "tag": "sums"},
        {"prompt": "What is " + "1 + " * 40 + "1?", "ground_truth": "41", "tag": "sums"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tokens.jsonl").write_text(json.dumps({"input_ids": ids, "ground_truth": "19", "tag": "sums"}))
    for file in ("rows.jsonl", "tokens.jsonl"):
        given = config(file_name=[str(tmp_path / file)], truncation="left")
        table = load_data(given, text).train.table
        assert list(sent(given, table, text)) == list(table)


def test_a_position_has_the_same_task_by_row_as_by_prompt(text: Text, tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n} + 2?", "ground_truth": str(n + 2), "tag": "sums"} for n in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_data(config(file_name=[str(tmp_path / "rows.jsonl")]), text).train
    for prompts in (data, ProgressSelector(data, seed=1)):
        whole, named = prompt_source(prompts, 4, "train-", 1.5), row_source(prompts.place, 4, "train-", 1.5)
        for position in range(12):
            one, other = whole(position), named(position)
            assert data.table[other.what] == one.what
            for name in ("tag", "group_id", "size", "number", "domain"):
                assert getattr(one, name) == getattr(other, name)
            assert data.table.place(other.what).key == one.what.key


def test_rows_of_a_class_of_ones_own_are_read_there_again_and_must_be_the_same(text: Text, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(CLASS)

    def given(last: int) -> RLVRConfig:
        return config(custom_cls={"path": str(tmp_path / "sums.py"), "name": "Sums", "kwargs": {"last": last}})

    table = load_data(given(7), text).train.table
    assert list(sent(given(7), table, text)) == list(table)
    with pytest.raises(ConfigError, match=r"(?s)custom_cls.*its rows are others in the worker that keeps prompts"):
        sent(given(8), table, text)
