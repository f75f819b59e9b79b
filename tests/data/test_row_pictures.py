"""Pictures of rows: every form in which data sets write them, and what is said of those that are none."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from data_support import TOKENS, write_jsonl
from pyarrow import parquet

from roll.config.errors import FixableError
from roll.config.worker import DataArgs
from roll.data import LengthLimit, load_prompts
from roll.data.errors import DataError
from roll.data.row_pictures import pictures_of, with_places
from roll.generation import Picture
from roll.rendering import PICTURE
from tests.pictures import png

DATA = png(2, 3)


def limit_of(longest: int | None = None, truncation: str = "error") -> LengthLimit:
    return LengthLimit(longest, truncation, **TOKENS, pictures=Sixes())  # type: ignore[arg-type]


class Sixes:
    """Every picture is six tokens; the word that stands for one is that of the mark."""

    def tokens_of(self, data: bytes) -> int:
        if not data.startswith(b"\x89PNG"):
            raise FixableError("that is no picture.", "write a PNG.")
        return 6

    def expanded(self, ids: Sequence[int], shown: Sequence[bytes]) -> tuple[list[int], list[Picture]]:
        tokens: list[int] = []
        pictures = []
        for token in ids:
            if token == int.from_bytes(PICTURE.encode(), "big") + 2:
                pictures.append(Picture(len(tokens), 2, 3, shown[len(pictures)]))
                tokens += [-1] * 6
            else:
                tokens.append(token)
        return tokens, pictures


def rows_of(path: Path, **changes: Any) -> Any:
    limit = changes.pop("limit", limit_of())
    args = DataArgs(file_name=[str(path)], image_key="images", prompt="prompt", **changes)
    return load_prompts(args, {"math": ["math"]}, limit, seed=1).table


def test_every_form_is_the_same_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(DATA)
    monkeypatch.chdir(tmp_path)
    written = base64.b64encode(DATA).decode()
    forms = ["a.png", str(tmp_path / "a.png"), written, f"data:image/png;base64,{written}", DATA]
    forms += [{"bytes": DATA, "path": None}, {"bytes": None, "path": "a.png"}, {"image": f"file://{tmp_path}/a.png"}]
    for form in forms:
        assert pictures_of(form, "images") == (DATA,)
    assert pictures_of(forms, "images") == (DATA,) * len(forms)
    assert pictures_of(None, "images") == pictures_of([], "images") == ()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("absent.png", "picture 1 of 'images' is 'absent.png', which is no file here and no base64"),
        ("absent", "is no file here and no base64"),
        ("data:image/png;base64,???", "is no file here and no base64"),
        ([DATA, 3], "picture 2 of 'images' is int"),
        ({"width": 3}, "has neither bytes nor a path"),
    ],
)
def test_what_is_no_picture_is_told_with_its_number(cell: Any, message: str) -> None:
    with pytest.raises(FixableError) as caught:
        pictures_of(cell, "images")
    assert message in caught.value.message


def test_pictures_are_shown_where_the_prompt_says_so_else_before_it() -> None:
    asked = [{"role": "system", "content": "<image>"}, {"role": "user", "content": f"a <image> b <image>{PICTURE}"}]
    placed = with_places(asked, 2)
    assert placed[0]["content"] == "<image>" and placed[1]["content"] == f"a {PICTURE} b {PICTURE}\ufffd"
    assert with_places([{"role": "user", "content": "what?"}], 2)[0]["content"] == f"{PICTURE}{PICTURE}what?"
    for places, pictures in ((1, 2), (2, 1), (1, 0)):
        with pytest.raises(FixableError, match=f"says <image> {places} times, and the row has {pictures} pictures"):
            with_places([{"role": "user", "content": "<image>" * places}], pictures)


def test_rows_become_prompts_with_pictures(tmp_path: Path) -> None:
    rows = [
        {"prompt": "look <image> well", "images": [{"bytes": DATA}], "ground_truth": "1"},
        {"prompt": "no picture", "images": [], "ground_truth": "2"},
    ]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with_picture, without = rows_of(path)
    assert [(picture.start, picture.data) for picture in with_picture.pictures] == [(2, DATA)]
    assert with_picture.prompt_ids[2:8] == [-1] * 6 and len(with_picture.prompt_ids) == 10
    assert without.pictures == () and without.messages[0]["content"] == "no picture"
    # What graders are sent has no picture in it.
    assert dict(with_picture.row) == {"prompt": "look <image> well", "ground_truth": "1"}


def test_a_bad_picture_is_told_with_its_row(tmp_path: Path) -> None:
    good = {"prompt": "a", "ground_truth": "1", "images": base64.b64encode(DATA).decode()}
    for bad, message in (("absent.png", "no file here"), (base64.b64encode(b"words" * 20).decode(), "no picture")):
        path = write_jsonl(tmp_path / "rows.jsonl", [good, {**good, "images": bad}])
        with pytest.raises(DataError, match=message) as caught:
            rows_of(path)
        assert (caught.value.file, caught.value.line) == ("rows.jsonl", 2)


def test_tokens_of_pictures_count(tmp_path: Path) -> None:
    picture = base64.b64encode(DATA).decode()
    rows = [{"prompt": f"{words} <image>", "ground_truth": "1", "images": picture} for words in ("a", "a b")]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert len(rows_of(path, limit=limit_of(10))) == 2
    with pytest.raises(DataError, match="1 prompts are longer than `prompt_length`, 9 tokens"):
        rows_of(path, limit=limit_of(9))
    assert len(rows_of(path, limit=limit_of(9), filter_overlong_prompts=True)) == 1
    with pytest.raises(DataError, match="it is not cut"):
        rows_of(path, limit=limit_of(9, "left"))


def test_a_column_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "image": "x", "ground_truth": "1"}])
    with pytest.raises(DataError, match="no column 'images', which `image_key` names"):
        rows_of(path)


def test_pictures_that_nothing_can_show_are_told(tmp_path: Path) -> None:
    row = {"prompt": "a", "ground_truth": "1", "images": base64.b64encode(DATA).decode()}
    with pytest.raises(DataError, match="nothing here can show them"):
        rows_of(write_jsonl(tmp_path / "rows.jsonl", [row]), limit=LengthLimit(None, "error", **TOKENS))
