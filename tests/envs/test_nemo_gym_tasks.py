"""Rows of NeMo Gym's files as messages and tools, and what a policy writes as items of responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.envs.adapters.nemo_gym_tasks import ResponseItems, read_tasks
from roll.envs.errors import EnvConfigError
from roll.tools.calls import find_calls

ADD = {"type": "function", "name": "add", "description": None, "parameters": None, "strict": True}


def rows(folder: Path, *params: Any) -> str:
    path = folder / "tasks.jsonl"
    lines = [json.dumps({"id": number, "responses_create_params": each}) for number, each in enumerate(params)]
    path.write_text("\n\n".join(lines), "utf-8")
    return str(path)


def test_a_conversation_is_told_as_chat_templates_take_it(tmp_path: Path) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Add "}, {"type": "input_text", "text": "1."}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "secret"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"count": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"role": "user", "content": "Again."},
    ]
    path = rows(tmp_path, {"instructions": "Add.", "input": items, "tools": [ADD]}, {"input": "Hello."})
    first, second = read_tasks(path)
    call = '<tool_call>\n{"name": "add", "arguments": {"count": 1}}\n</tool_call>'
    assert list(first.messages) == [
        {"role": "system", "content": "Add.\n\nBe brief."},
        {"role": "user", "content": "Add 1."},
        {"role": "assistant", "content": f"I add.\n{call}"},
        {"role": "tool", "content": "done"},
        {"role": "user", "content": "Again."},
    ]
    assert first.tools == ({"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}},)
    assert first.row["id"] == 0 and first.row["responses_create_params"]["tools"] == [ADD]
    assert list(second.messages) == [{"role": "user", "content": "Hello."}] and second.tools == ()


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"input": []}, "line 1: it says nothing"),
        ({}, "line 1: .*KeyError: 'input'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "KeyError: 'text'"),
        ({"input": [{"role": "critic", "content": "x"}]}, "KeyError: 'critic'"),
        ({"input": [{"type": "web_search_call", "id": "1"}]}, "an item of the type 'web_search_call'"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "a tool of the type 'web_search'"),
    ],
)
def test_what_is_no_task_of_text_and_functions_is_told_with_its_line(tmp_path: Path, params: Any, problem: str) -> None:
    with pytest.raises(EnvConfigError, match=problem):
        read_tasks(rows(tmp_path, params))


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(EnvConfigError, match="cannot be read"):
        read_tasks(str(tmp_path / "missing.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(EnvConfigError, match="has no rows"):
        read_tasks(str(tmp_path / "empty.jsonl"))
    (tmp_path / "broken.jsonl").write_text("\n{")
    with pytest.raises(EnvConfigError, match="line 2: "):
        read_tasks(str(tmp_path / "broken.jsonl"))


def added(*responses: str) -> list[dict[str, Any]]:
    said = ResponseItems()
    for response in responses:
        for call_id in said.add_response(response, find_calls(response, ["hermes", "llama3_json"])):
            if call_id:
                said.add_output(call_id, "out")
    return said.response({"responses_create_params": {"input": "x"}})["output"]


def shortened(items: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    short = {
        "reasoning": lambda item: (item["summary"][0]["text"],),
        "message": lambda item: (item["role"], item["content"][0]["text"]),
        "function_call": lambda item: (item["call_id"], item["name"], item["arguments"]),
        "function_call_output": lambda item: (item["call_id"], item["output"]),
    }
    return [(item["type"], *short[item["type"]](item)) for item in items]


def test_thoughts_text_and_calls_are_items_of_their_own() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"é": 1}}\n</tool_call>'
    items = added(f"<think>hm</think>\n\nI add.\n{call}\n{call}", call, "<think>well</think>Three.")
    assert shortened(items) == [
        ("reasoning", "hm"),
        ("message", "assistant", "I add."),
        ("function_call", "call_2", "add", '{"é": 1}'),
        ("function_call", "call_3", "add", '{"é": 1}'),
        ("function_call_output", "call_2", "out"),
        ("function_call_output", "call_3", "out"),
        ("function_call", "call_4", "add", '{"é": 1}'),
        ("function_call_output", "call_4", "out"),
        ("reasoning", "well"),
        ("message", "assistant", "Three."),
    ]
    made = [item["id"] for item in items if "id" in item]
    assert len(set(made)) == len(made)


def test_what_is_no_call_stays_text() -> None:
    assert shortened(added("<tool_call>{broken</tool_call>")) == [
        ("message", "assistant", "<tool_call>{broken</tool_call>")
    ]
    assert shortened(added('{"name": "add", "parameters": {}}')) == [
        ("function_call", "call_0", "add", "{}"),
        ("function_call_output", "call_0", "out"),
    ]
    assert shortened(added("")) == [("message", "assistant", "")]
    assert shortened(added("Say. <think>cut")) == [("reasoning", "cut"), ("message", "assistant", "Say.")]
