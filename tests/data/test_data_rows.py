from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from data_support import load, write_as, write_jsonl

from roll.data import DataError
from roll.data.rows import as_text, lookup

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]


def one(tmp_path: Path, row: dict[str, Any], domains: dict[str, list[str]] | None = None, **args: Any) -> Any:
    path = write_jsonl(tmp_path / "data.jsonl", [row])
    return load({"file_name": path, **args}, domains or {"math": ["math"]}).at(0)


def test_a_messages_column_may_hold_lists_or_json_text(tmp_path: Path) -> None:
    assert one(tmp_path, {"messages": CHAT}).messages == CHAT
    assert one(tmp_path, {"messages": json.dumps(CHAT)}).messages == CHAT
    csv = write_as(tmp_path, ".csv", [{"messages": json.dumps(CHAT), "ground_truth": "2"}])
    assert load({"file_name": csv}).at(0).messages == CHAT


@pytest.mark.parametrize("extension", [".jsonl", ".json", ".parquet"])
def test_verl_rows_are_read_with_a_dotted_ground_truth(tmp_path: Path, extension: str) -> None:
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    args = {
        "file_name": write_as(tmp_path, extension, [row]),
        "ground_truth": "reward_model.ground_truth",
        "tag": "data_source",
    }
    prompt = load(args, {"math": ["gsm8k"]}).at(0)
    assert (prompt.messages, prompt.ground_truth) == (row["prompt"], "2")
    assert (prompt.domain, prompt.tag) == ("math", "gsm8k")
    assert dict(prompt.row) == row


def test_dotted_paths_prefer_a_column_of_that_name_and_go_into_json_text() -> None:
    assert lookup({"a": {"b": {"c": 1}}}, "a.b.c") == 1
    assert lookup({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert lookup({"a": '{"b": 3}'}, "a.b") == 3
    assert lookup({"a": "{broken"}, "a.b") is None
    assert lookup({"a": 5}, "a.b") is None
    assert lookup({}, "a") is None


def test_answers_become_text_as_a_data_file_spells_them() -> None:
    values = ["1", 7, 0.1, True, [1, "a"], Decimal("1.50"), date(2024, 1, 2)]
    assert [as_text(value) for value in values] == ["1", "7", "0.1", "true", '[1, "a"]', "1.50", "2024-01-02"]
    assert as_text(None) is None


def test_the_system_prompt_stands_before_prompts_that_have_none(tmp_path: Path) -> None:
    assert one(tmp_path, {"prompt": "x"}, system_prompt="Think.").messages == [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "x"},
    ]
    assert one(tmp_path, {"messages": CHAT}, system_prompt="Think.").messages == CHAT


def test_prompt_and_messages_together_need_a_choice(tmp_path: Path) -> None:
    row = {"prompt": "text", "messages": CHAT}
    with pytest.raises(DataError, match=r"both a `prompt` and a `messages` column(.|\n)*`messages: messages`"):
        one(tmp_path, row)
    assert one(tmp_path, row, prompt="prompt").messages == [{"role": "user", "content": "text"}]
    assert one(tmp_path, row, messages="messages").messages == CHAT
    with pytest.raises(DataError, match="both set"):
        one(tmp_path, row, prompt="prompt", messages="messages")


def test_a_missing_column_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="no column 'instrution', which `prompt` names(.|\n)*did you mean 'instruction'"
    ):
        one(tmp_path, {"instruction": "x"}, prompt="instrution")
    with pytest.raises(DataError, match="no column `prompt` or `messages`(.|\n)*answer, question"):
        one(tmp_path, {"question": "x", "answer": "1"})


BAD_CHATS: dict[str, tuple[Any, str]] = {
    "empty": ([], "has no messages"),
    "text": ("hello", "text that is not valid JSON"),
    "no role": ([{"content": "x"}], "message 1 of 'messages' has no role"),
    "no text": ([{"role": "user", "content": None}], "message 1 of 'messages' has no text"),
    "parts": ([{"role": "user", "content": [{"type": "image"}]}], "has no text as `content`"),
    "no mapping": (["x"], "message 1 of 'messages' is str"),
    "answered": ([*CHAT, {"role": "assistant", "content": "2"}], "ends with a message of the assistant"),
    "only system": (CHAT[:1], "ends with a message of the system"),
}


@pytest.mark.parametrize("name", BAD_CHATS)
def test_conversations_that_cannot_be_answered_are_bad_rows(tmp_path: Path, name: str) -> None:
    content, message = BAD_CHATS[name]
    path = write_jsonl(tmp_path / "data.jsonl", [{"messages": CHAT}, {"messages": content}])
    with pytest.raises(DataError, match=message) as caught:
        load({"file_name": path})
    assert caught.value.line == 2
    assert len(load({"file_name": path, "on_bad_row": "skip"})) == 1


def test_a_row_belongs_to_the_domain_that_includes_its_tag(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "tag": tag} for tag in ("aime", "kodcode", "gsm8k")]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    table = load({"file_name": path}, {"math": ["gsm8k", "aime"], "code": ["kodcode"]}).table
    assert [(prompt.domain, prompt.tag) for prompt in table] == [
        ("math", "aime"),
        ("code", "kodcode"),
        ("math", "gsm8k"),
    ]
    assert {name: list(rows) for name, rows in table.domains.items()} == {"math": [0, 2], "code": [1]}


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_tags_of_no_domain_are_errors_that_list_the_known_ones(tmp_path: Path, on_bad_row: str) -> None:
    rows = [{"prompt": "x", "tag": tag} for tag in ("gsm8k", "aime", "aime", "imo")]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    with pytest.raises(DataError, match="Known: gsm8k, math") as caught:
        load({"file_name": path, "on_bad_row": on_bad_row}, {"math": ["gsm8k"]})
    assert "data.jsonl, line 2: 'aime' (2 rows), 'imo' (1 rows)" in str(caught.value)


def test_without_a_tag_column_rows_belong_to_the_only_domain_but_not_to_one_of_several(tmp_path: Path) -> None:
    prompt = one(tmp_path, {"prompt": "x"}, {"code": ["kodcode"]})
    assert (prompt.domain, prompt.tag) == ("code", "code")
    with pytest.raises(DataError, match="the row has no 'tag'"):
        one(tmp_path, {"prompt": "x"}, {"code": ["code"], "math": ["math"]})
    rows = [{"prompt": "x", "tag": "math"}, {"prompt": "y"}]
    with pytest.raises(DataError, match="line 2: the row has no 'tag'"):
        load({"file_name": write_jsonl(tmp_path / "data.jsonl", rows)})


def test_a_tag_of_two_domains_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'gsm8k' belongs to two domains, 'math' and 'more'"):
        one(tmp_path, {"prompt": "x"}, {"math": ["gsm8k"], "more": ["gsm8k"]})


@pytest.mark.parametrize(
    "broken",
    [
        {"prompt": "\ud83d"},
        {"ground_truth": "\udc00"},
        {"note": "a \ud83d b"},
        {"nested": {"list": ["\ud83d"]}},
        {"\ud83d": 1},
    ],
)
def test_half_of_a_surrogate_pair_anywhere_makes_a_bad_row_and_no_more(tmp_path: Path, broken: dict[str, Any]) -> None:
    fine = {"prompt": "1 + 1? 😀 \\ud83d", "ground_truth": "2"}
    path = write_jsonl(tmp_path / "data.jsonl", [json.dumps(row) for row in (fine, {**fine, **broken})])
    with pytest.raises(DataError, match="data.jsonl, line 2: .* holds half of a surrogate pair"):
        load({"file_name": path})
    assert len(load({"file_name": path, "on_bad_row": "skip"})) == 1
