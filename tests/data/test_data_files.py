from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from data_support import encode_words, load, problems, write_as, write_jsonl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roll.data import DataError

FORMATS = [".json", ".jsonl", ".csv", ".parquet"]
# Surrogates are no text, and a NUL is refused by CSV readers.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "prompt": TEXT.filter(str.strip),
                "ground_truth": TEXT.filter(bool) | st.none(),
                "tag": st.sampled_from(["math", "007", "2024-01-01"]),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_all_formats_give_equal_prompts(rows: list[dict[str, str | None]]) -> None:
    domains = {"all": ["math", "007", "2024-01-01"]}
    with tempfile.TemporaryDirectory() as name:
        found = {
            extension: [
                (prompt.messages, prompt.ground_truth, prompt.tag, dict(prompt.row), prompt.prompt_ids)
                for prompt in load({"file_name": write_as(Path(name), extension, rows)}, domains).table
            ]
            for extension in FORMATS
        }
    expected = []
    for row in rows:
        messages = [{"role": "user", "content": row["prompt"] or ""}]
        expected.append((messages, row["ground_truth"], row["tag"], row, encode_words(messages)))
    for extension in FORMATS:
        assert found[extension] == expected, extension


@pytest.mark.parametrize("answer", ["2024-01-01", "007", "1e3", "NA", "true", "null", "0.10"])
@pytest.mark.parametrize("extension", FORMATS)
def test_answers_that_look_like_other_types_stay_text(tmp_path: Path, extension: str, answer: str) -> None:
    path = write_as(tmp_path, extension, [{"prompt": "?", "ground_truth": answer, "tag": "math"}])
    assert load({"file_name": path}).at(0).ground_truth == answer


def test_json_rows_keep_their_own_types_and_keys(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "ground_truth": 5, "constraints": [{"type": "count", "n": 1}]},
        {"prompt": "b", "ground_truth": "5", "constraints": [{"type": "words", "words": ["x"]}], "more": 1.5},
        {"prompt": "c", "ground_truth": [1, 2]},
    ]
    prompts = list(load({"file_name": write_jsonl(tmp_path / "a.jsonl", rows)}).table)
    assert [dict(prompt.row) for prompt in prompts] == rows
    assert [prompt.ground_truth for prompt in prompts] == ["5", "5", "[1, 2]"]


def test_several_files_are_read_in_order_with_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    files = [
        write_as(tmp_path, ".csv", problems(2)),
        write_as(tmp_path, ".parquet", problems(1)),
        write_jsonl(tmp_path / "a.jsonl", problems(1)),
        write_jsonl(tmp_path / "x" / "a.jsonl", problems(1)),
    ]
    keys = [prompt.key for prompt in load({"file_name": files}).table]
    assert keys == ["data.csv:2", "data.csv:3", "data.parquet:1", f"{files[2]}:1", f"{files[3]}:1"]


def test_json_lines_may_have_blank_lines_a_byte_order_mark_and_the_ending_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n  \n{"prompt": "two\xe2\x80\xa8"}')
    prompts = list(load({"file_name": path}).table)
    assert [(prompt.key, prompt.messages[0]["content"]) for prompt in prompts] == [
        ("a.json:1", "one"),
        ("a.json:4", "two\u2028"),
    ]


def test_csv_cells_may_contain_commas_quotes_and_line_breaks_and_lines_are_counted_through_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt,ground_truth\n"a, ""b""\nc",1\n\nplain,\nmissing\n', encoding="utf-8")
    data = load({"file_name": path, "on_bad_row": "skip"})
    assert [(prompt.key, prompt.messages[0]["content"], prompt.ground_truth) for prompt in data.table] == [
        ("a.csv:2", 'a, "b"\nc', "1"),
        ("a.csv:5", "plain", None),
    ]
    assert data.report.examples == ["a.csv, line 6: 1 cells where the header has 2 columns."]


BAD_LINES = {
    "broken JSON": ('{"prompt": "x"', "not valid JSON"),
    "no object": ("[1, 2]", "must be a JSON object, not list"),
    "no prompt": ('{"ground_truth": "1"}', "'prompt' is missing"),
    "empty prompt": ('{"prompt": "  "}', "'prompt' is empty"),
    "deep brackets": (
        '{"prompt": "x", "ground_truth": ' + "[" * 200_000 + "]" * 200_000 + "}",
        "brackets are too deep",
    ),
    "a huge number": ('{"prompt": "x", "ground_truth": ' + "9" * 10_000 + "}", "10000 digits; write it as text"),
    "a key twice": ('{"prompt": "x", "ground_truth": "1", "ground_truth": "2"}', "'ground_truth' stands twice"),
    "no number": ('{"prompt": "x", "ground_truth": NaN}', "NaN is no number of JSON"),
    "number for a prompt": ('{"prompt": 5}', "'prompt' is int, not text"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path, name: str) -> None:
    line, message = BAD_LINES[name]
    rows = [*problems(16), line, *problems(3)]
    path = write_jsonl(
        tmp_path / "train.jsonl", [row if isinstance(row, str) else {"prompt": row["prompt"]} for row in rows]
    )
    with pytest.raises(DataError, match=message) as caught:
        load({"file_name": path})
    assert (caught.value.file, caught.value.line) == ("train.jsonl", 17)
    assert str(caught.value).startswith("train.jsonl, line 17: ")
    data = load({"file_name": path, "on_bad_row": "skip"})
    assert len(data) == 19
    assert (data.report.read, data.report.skipped) == (20, 1)
    assert data.report.examples[0].startswith("train.jsonl, line 17: ")
    assert "train.jsonl:17" not in [prompt.key for prompt in data.table]


def test_lines_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2: not valid UTF-8"):
        load({"file_name": path})
    assert len(load({"file_name": path, "on_bad_row": "skip"})) == 1


def test_a_broken_array_is_named_by_line_even_where_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"prompt": "x"},\n{"prompt" "y"}\n]')
    with pytest.raises(DataError, match="a.json, line 3: not valid JSON"):
        load({"file_name": path, "on_bad_row": "skip"})


def test_an_array_that_says_two_things_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"prompt": "x", "prompt": "y"}]')
    with pytest.raises(DataError, match="a.json: not usable JSON: the key 'prompt' stands twice"):
        load({"file_name": path})


def test_nan_in_a_table_is_no_ground_truth(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "ground_truth": 1.5}, {"prompt": "y", "ground_truth": float("nan")}]
    data = load({"file_name": write_as(tmp_path, ".parquet", rows)})
    assert [prompt.ground_truth for prompt in data.table] == ["1.5", None]


def test_bad_rows_of_tables_are_named_by_row(tmp_path: Path) -> None:
    rows = [{"prompt": text, "ground_truth": "1"} for text in ("x", "", "y")]
    path = write_as(tmp_path, ".parquet", rows)
    with pytest.raises(DataError, match=r"data.parquet, row 2: 'prompt' is empty"):
        load({"file_name": path})
    assert [prompt.key for prompt in load({"file_name": path, "on_bad_row": "skip"}).table] == [
        "data.parquet:1",
        "data.parquet:3",
    ]


def test_a_quote_that_is_never_closed_is_an_error_because_it_swallows_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt\none\n"two\nthree\nfour\n')
    with pytest.raises(DataError, match="a.csv, line 3: a double quote opens in this record and is never closed"):
        load({"file_name": path, "on_bad_row": "skip"})


def test_a_parquet_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("hello")
    with pytest.raises(DataError, match="a.parquet: not a parquet file"):
        load({"file_name": path})


def test_a_changed_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    for extension in FORMATS:
        assert (
            load({"file_name": write_as(tmp_path, extension, problems(2))}).table[1].messages[0]["content"] == "math 1"
        )
        path = write_as(tmp_path, extension, problems(2, tag="new"))
        assert load({"file_name": path}, {"all": ["new"]}).table[1].messages[0]["content"] == "new 1"


def test_missing_files_and_unknown_formats_say_what_to_do(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", problems(1))
    with pytest.raises(DataError, match=r"did you mean .*train\.jsonl"):
        load({"file_name": tmp_path / "trian.jsonl"})
    with pytest.raises(DataError, match=r"'\.txt' cannot be read(.|\n)*\.json, \.jsonl, \.csv, \.parquet"):
        load({"file_name": tmp_path / "train.txt"})
    with pytest.raises(DataError, match="twice"):
        load({"file_name": [tmp_path / "train.jsonl", tmp_path / "train.jsonl"]})
    with pytest.raises(DataError, match="`file_name` is not set"):
        load({})
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="no rows"):
        load({"file_name": tmp_path / "empty.jsonl"})


@pytest.mark.parametrize("extension", FORMATS)
def test_max_samples_takes_the_first_rows_of_each_file(tmp_path: Path, extension: str) -> None:
    data = load({"file_name": write_as(tmp_path, extension, problems(5)), "max_samples": 3})
    assert [prompt.ground_truth for prompt in data.table] == ["0", "1", "2"]
    assert data.report.read == 3


@pytest.mark.processes
def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ["torch", "transformers", "datasets", "pandas", "ray"]
    code = f"import sys, json, roll.data; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
