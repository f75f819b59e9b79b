"""Where rows lie: files, folders, and data sets of a hub in its own cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.places import data_paths, is_hub_id


def _folder(root: Path) -> Path:
    for name in ("main/train-0.jsonl", "main/train-1.jsonl", "main/test-0.jsonl", "other/train-0.jsonl"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"prompt": "1 + 1"}\n')
    (root / "README.md").write_text("no rows")
    (root / "dataset_infos.json").write_text("{}")
    return root


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"subset": "main", "split": "train"}, ["main/train-0.jsonl", "main/train-1.jsonl"]),
        ({"subset": "main"}, ["main/test-0.jsonl", "main/train-0.jsonl", "main/train-1.jsonl"]),
        ({"subset": "other", "split": "train"}, ["other/train-0.jsonl"]),
    ],
)
def test_a_folder_stands_for_its_data_files(keys: dict[str, str], names: list[str], tmp_path: Path) -> None:
    _folder(tmp_path)

    found = data_paths(DataArgs(file_name=[str(tmp_path)], **keys))

    assert [str(path.relative_to(tmp_path)) for path in found] == names


def test_a_split_that_there_is_not_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"split: dev.*test-0\.jsonl"):
        data_paths(DataArgs(file_name=[str(_folder(tmp_path))], split="dev"))


def test_a_data_set_of_the_hub_is_taken_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    store = tmp_path / "datasets--maker--sums"
    (store / "refs").mkdir(parents=True)
    (store / "refs" / "main").write_text("0" * 40)
    _folder(store / "snapshots" / ("0" * 40))

    found = data_paths(DataArgs(file_name=["maker/sums"], subset="main", split="test"))

    assert [path.name for path in found] == ["test-0.jsonl"]
    with pytest.raises(DataError, match="maker/nothing cannot be had"):
        data_paths(DataArgs(file_name=["maker/nothing"]))


def test_a_path_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()

    assert is_hub_id("openai/gsm8k")
    assert not any(map(is_hub_id, ("data/train", "x/train.jsonl", "/abs/olute", "plain", "a/b/c")))
