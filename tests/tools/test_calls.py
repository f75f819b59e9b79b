"""Calls are read as vLLM's own parsers read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.models.loading import load_tokenizer
from roll.tools.calls import find_calls
from tests.tools.written_calls import CASES, FUNCTIONS, WRITTEN, read, written


@pytest.mark.long
@pytest.mark.parametrize(("name", "text"), CASES)
def test_calls_are_read_as_vllm_reads_them(name: str, text: str) -> None:
    assert read(name, text) == by_vllm(name, text)


@pytest.mark.long
@given(st.data(), st.sampled_from(sorted(WRITTEN)))
def test_calls_of_any_arguments_are_read_as_vllm_reads_them(data: st.DataObject, name: str) -> None:
    text = data.draw(written(name))
    assert read(name, text) == by_vllm(name, text)


def by_vllm(name: str, text: str) -> list[tuple[str, Any]]:
    pytest.importorskip("vllm")
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam

    tools = [ChatCompletionToolsParam(type="function", function=function) for function in FUNCTIONS]
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=tools)
    found = _vllm_parser(name)(_tokenizer(), tools).extract_tool_calls(text, request).tool_calls
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


@cache
def _vllm_parser(name: str) -> Any:
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager.get_tool_parser({"xml": "qwen3_coder"}.get(name, name))


@cache
def _tokenizer() -> Any:
    tokenizer = load_tokenizer("toy")
    tokenizer.add_tokens(["<|python_tag|>"])
    return tokenizer


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{'name': 'add'}</tool_call>", "no valid JSON"),
        ("<tool_call></tool_call>", "no valid JSON"),
        ("<tool_call>[1]</tool_call>", "an object"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', '"name"'),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    (call,) = find_calls(text, ["hermes", "xml"])
    assert problem.replace("an object", "JSON object") in call.problem


def test_what_is_thought_is_no_call() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert find_calls(f"<think>{call}</think>Done.", ["hermes"]) == []
    assert find_calls(f"<think>{call}", ["hermes"]) == []
    assert find_calls(f"{call}</think>", ["hermes"]) == []  # the template opened the thought
    assert len(find_calls(f"<think>so</think>{call}", ["hermes"])) == 1


def test_the_first_format_that_finds_calls_counts() -> None:
    xml = "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>"
    for formats in (["hermes", "xml"], ["xml", "hermes"], ["python", "xml"]):
        (call,) = find_calls(xml, formats)
        assert (call.name, call.arguments, call.as_text) == ("add", {"a": "1"}, True)
    assert find_calls("<python>\nprint(1)\n</python><python>2", ["hermes", "python"]) == program("print(1)", "2")


def program(*codes: str) -> Sequence[Any]:
    from roll.tools.calls import ToolCall

    return [ToolCall("python", {"code": code}) for code in codes]


def test_an_answer_in_json_is_no_call() -> None:
    for answer in ('{"result": 3}', "[1, 2]", "{not json", json.dumps({"name": "Ann", "age": 3})):
        assert find_calls(answer, ["llama3_json"]) == []
