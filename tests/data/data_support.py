"""Data files and a tokenizer made of words, for tests that need no real one."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from roll.config.worker import DataArgs
from roll.data import LengthLimit, PromptDataset, load_prompts
from roll.data.rows import Messages

MATH = {"math": ["math"]}


def encode_words(messages: Messages) -> list[int]:
    """One token per word, one for each role, one for the generation prompt."""
    return [number for message in messages for number in [0, *encode_text(message["content"])]] + [1]


def encode_text(text: str) -> list[int]:
    return [int.from_bytes(word.encode(), "big") + 2 for word in text.split()]


def decode_words(ids: Sequence[int]) -> str:
    return " ".join((number - 2).to_bytes(64, "big").lstrip(b"\0").decode() for number in ids)


TOKENS: dict[str, Any] = {"encode": encode_words, "encode_text": encode_text, "decode": decode_words}


def load(
    args: Mapping[str, Any],
    domains: Mapping[str, Sequence[str]] = MATH,
    *,
    prompt_length: int | None = None,
    seed: int = 1,
) -> PromptDataset:
    """Load with the word tokenizer; paths in ``args`` may be ``Path``."""
    files = args.get("file_name")
    if files is not None:
        paths = files if isinstance(files, list) else [files]
        args = {**args, "file_name": [str(path) for path in paths]}
    section = DataArgs(**args)
    return load_prompts(section, domains, LengthLimit(prompt_length, section.truncation, **TOKENS), seed=seed)


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows as JSON lines; a row that is text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_as(folder: Path, extension: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the same rows in a format; all rows have the same columns."""
    path = folder / f"data{extension}"
    if extension == ".jsonl":
        return write_jsonl(path, rows)
    if extension == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif extension == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def problems(count: int, tag: str = "math") -> list[dict[str, str]]:
    return [{"prompt": f"{tag} {index}", "ground_truth": str(index), "tag": tag} for index in range(count)]
