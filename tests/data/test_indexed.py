"""Pairs of `.bin` and `.idx` that Megatron-Core's own writer made are rows of token ids."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.config.sft import SFTConfig
from roll.config.worker import DataArgs
from roll.data import LengthLimit, PromptDataset, load_prompts
from roll.data.errors import DataError
from roll.data.supervised import load_demonstrations
from roll.data.supervised_rows import Demonstration, Tokens
from roll.rendering.supervised import TokenSequence

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
    ),
]

ASKED = ("how much is one and one", "how much is two and two", "name a color")
ANSWERS = ("two", "four", "red")


def spelled(text: str) -> list[int]:
    """A token per letter."""
    return [ord(letter) for letter in text]


def read_letters(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def write_pair(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: type[Any] = np.int32) -> Path:
    """Write documents, each of several sequences, with the writer of Megatron-Core."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix.with_name(prefix.name + ".idx")


def write_columns(folder: Path, columns: Mapping[str, Sequence[Sequence[int]]]) -> Path:
    """Write columns under the names of MindSpeed-RL's preprocessing, and return what it takes as `data_path`."""
    for column, cells in columns.items():
        write_pair(folder / f"data_packed_{column}_document", [[cell] for cell in cells])
    return folder / "data"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    prompts, answers = [spelled(one) for one in ASKED], [spelled(one) for one in ANSWERS]
    masks = [[1] * len(ids) for ids in prompts]
    return write_columns(tmp_path, {"input_ids": prompts, "attention_mask": masks, "labels": answers})


def load(path: Path, prompt_length: int | None = None, **args: Any) -> PromptDataset:
    def encode(messages: object) -> list[int]:
        raise AssertionError("what is token ids was made tokens of once more")

    section = DataArgs(file_name=[str(path)], shuffle=False, **args)
    tokens: dict[str, Any] = {"encode": encode, "encode_text": spelled, "decode": read_letters}
    return load_prompts(section, {"all": ["*"]}, LengthLimit(prompt_length, section.truncation, **tokens), seed=1)


def imitated(path: Path, **args: Any) -> list[tuple[list[int], list[bool]]]:
    """Return tokens of the rows of a run that imitates, and which of them are imitated."""

    def encode(row: Demonstration) -> list[TokenSequence]:
        assert isinstance(row, Tokens)
        return [TokenSequence(row.token_ids, row.trained)]

    section = DataArgs(file_name=[str(path)], **args)
    table = load_demonstrations(section, SFTConfig(pretrain="toy"), 64, encode)
    return [(ids.tolist(), flags.tolist()) for row in range(len(table)) for ids, flags in table.sequences(row)]


def test_a_prompt_of_token_ids_is_sampled_from_as_it_is_and_read_as_its_text(prefix: Path) -> None:
    data = load(prefix, ground_truth="labels")
    assert len(data) == 3
    for position, (asked, answer) in enumerate(zip(ASKED, ANSWERS, strict=True)):
        prompt = data.at(position)
        assert (prompt.prompt_ids, prompt.ground_truth) == (spelled(asked), answer)
        assert prompt.messages == [{"role": "user", "content": asked}]
        assert prompt.key == f"data:{position + 1}"
        assert prompt.row["attention_mask"] == [1] * len(asked)
    assert len(load(prefix, ground_truth="labels", max_samples=2)) == 2


@pytest.mark.parametrize(("truncation", "kept"), [("left", "o and two"), ("right", "how much ")])
def test_token_ids_that_are_too_many_are_cut_at_one_end(prefix: Path, truncation: str, kept: str) -> None:
    prompt = load(prefix, prompt_length=9, truncation=truncation).at(1)
    assert prompt.prompt_ids == spelled(kept)
    assert prompt.messages[0]["content"] == kept


def test_token_ids_that_are_too_many_are_left_out_or_refused(prefix: Path) -> None:
    assert [one.messages[0]["content"] for one in load(prefix, 12, filter_overlong_prompts=True).table] == [ASKED[2]]
    with pytest.raises(DataError, match="2 prompts are longer than `prompt_length`, 12 tokens, first in data, row 1"):
        load(prefix, 12)


def test_one_pair_is_the_column_of_tokens_and_a_document_may_have_several_sequences(tmp_path: Path) -> None:
    """A document without sequences is what preprocessing leaves of one that was too long: no row."""
    documents = [[[1, 2], [3]], [], [[70000, 4]]]
    index = write_pair(tmp_path / "corpus_text_document", documents)
    for path in (index, index.with_suffix(".bin"), tmp_path / "corpus"):
        assert imitated(path) == [([1, 2, 3], [False, True, True]), ([70000, 4], [False, True])]


def test_labels_say_what_is_imitated(tmp_path: Path) -> None:
    prefix = write_columns(tmp_path, {"input_ids": [[5, 6, 7, 8], [9, 4]], "labels": [[-100, -100, 7, 8], [-100, 4]]})
    assert imitated(prefix) == [([5, 6, 7, 8], [False, False, True, True]), ([9, 4], [False, True])]
    other = write_columns(tmp_path, {"input_ids": [[5, 6]], "labels": [[-100, 7]]})
    with pytest.raises(DataError, match="'labels' are not the tokens of 'input_ids' that are imitated"):
        imitated(other)


def test_numbers_of_two_bytes_are_token_ids_too(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "small", [[[65000, 3]]], np.uint16)
    assert imitated(path) == [([65000, 3], [False, True])]


def test_a_system_prompt_cannot_stand_before_token_ids(prefix: Path) -> None:
    with pytest.raises(DataError, match="data, row 1: `system_prompt` cannot stand before 'input_ids'"):
        load(prefix, system_prompt="Be brief.")


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, words: str) -> None:
        with pytest.raises(DataError, match=words):
            imitated(path)

    differing = write_columns(tmp_path, {"input_ids": [[1], [2]], "labels": [[1]]})
    refused(differing, "different numbers of documents: input_ids 2, labels 1")
    refused(write_pair(tmp_path / "rewards", [[[1]]], np.float32), "float32 numbers")
    refused(write_pair(tmp_path / "nothing", []), "has no rows")
    torn = write_pair(tmp_path / "torn", [[[1, 2, 3]]])
    torn.with_suffix(".bin").write_bytes(b"1234")
    refused(torn, "torn.bin has 4 bytes, where its index names 12")
    torn.write_bytes(b"no index at all, but something else" * 3)
    refused(torn, "torn.idx is no index of such a data set")
    torn.with_suffix(".bin").unlink()
    refused(torn, "there is no file .*torn.bin")
    refused(tmp_path, f"name what the files of an indexed data set begin with: {tmp_path}/data")

    monkeypatch.setitem(sys.modules, "megatron.core.datasets.indexed_dataset", None)
    refused(
        tmp_path / "rewards.idx", r"(?s)Megatron-Core, which cannot be imported .*pip install 'roll-rl\[megatron\]'"
    )
