"""Calls of tools are read as SGLang's own parsers read them."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.engine_kinds import needs_sglang
from tests.tools.written_calls import CASES, FUNCTIONS, WRITTEN, read, written

pytestmark = [pytest.mark.sglang, needs_sglang]

DETECTORS = {
    "hermes": ("hermes_detector", "HermesDetector"),
    "xml": ("qwen3_coder_detector", "Qwen3CoderDetector"),
    "llama3_json": ("llama32_detector", "Llama32Detector"),
}


def by_sglang(name: str, text: str) -> list[tuple[str, Any]]:
    from sglang.srt.entrypoints.openai.protocol import Tool

    module, detector = DETECTORS[name]
    tools = [Tool(type="function", function=function) for function in FUNCTIONS]
    parser = getattr(import_module(f"sglang.srt.function_call.{module}"), detector)()
    found = parser.detect_and_parse(text, tools).calls
    return [(call.name, json.loads(call.parameters)) for call in found]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_calls_are_read_as_sglang_reads_them(name: str, text: str) -> None:
    assert read(name, text) == by_sglang(name, text)


@given(st.data(), st.sampled_from(sorted(WRITTEN)))
def test_calls_of_any_arguments_are_read_as_sglang_reads_them(data: st.DataObject, name: str) -> None:
    text = data.draw(written(name))
    assert read(name, text) == by_sglang(name, text)
