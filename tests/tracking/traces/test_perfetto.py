"""The file of spans is what Chrome's trace-event format says, also after a kill and after a run that went on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.tracing import TracingConfig
from roll.tracking.traces import Span, open_traces, span_id, trace_id


def span(number: int, begun: float = 1700000000.0, **changes: Any) -> Span:
    return Span(trace_id(number), span_id(number), f"span {number}", begun, begun + 0.5, **changes)


def checked(text: str) -> list[dict[str, Any]]:
    """Return the events of a file after a check against the format: phases, ids, times, and that begins have ends."""
    events = json.loads(text)
    assert isinstance(events, list)
    under_way: dict[tuple[str, str], list[str]] = {}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        assert event["ph"] in ("M", "b", "e")
        if event["ph"] == "M":
            assert event["name"] == "process_name" and isinstance(event["args"]["name"], str)
            continue
        assert isinstance(event["ts"], int) and event["ts"] > 0 and event["id"].startswith("0x") and event["cat"]
        open_ones = under_way.setdefault((event["cat"], event["id"]), [])
        if event["ph"] == "b":
            open_ones.append(event["name"])
        else:
            open_ones.remove(event["name"])
    assert not any(under_way.values())
    return events


def names(text: str) -> list[str]:
    return [event["name"] for event in checked(text) if event["ph"] == "b"]


def test_every_span_is_a_begin_and_an_end_on_the_track_of_its_trace(tmp_path: Path) -> None:
    traces = open_traces(TracingConfig(), folder=tmp_path / "logs", service="sokoban")
    inner = Span(trace_id(1), span_id("inner"), "inner", 1700000000.1, 1700000000.2, span_id(1), {"tokens": 3}, "broke")
    traces.add([span(1), inner])
    traces.add([span(2)])
    traces.close()
    traces.close()
    events = checked((tmp_path / "logs" / "trace.json").read_text())
    assert names((tmp_path / "logs" / "trace.json").read_text()) == ["span 1", "inner", "span 2"]
    begin = next(event for event in events if event["name"] == "inner")
    assert begin["args"] == {"tokens": 3, "error": "broke"} and begin["ts"] == 1700000000100000
    assert len({event["id"] for event in events if event["ph"] == "b"}) == 2
    with pytest.raises(ValueError, match="closed"):
        traces.add([span(3)])


@pytest.mark.parametrize("cut", [0, 1, 5, 40, 150])
def test_a_run_that_goes_on_appends_behind_what_a_kill_left(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trace.json"
    first = open_traces(TracingConfig(), folder=tmp_path, service="sokoban")
    first.add([span(1), span(2)])
    whole = path.read_text()
    path.write_text(whole[: len(whole) - cut])  # it was killed: there is no end, and perhaps half a line
    second = open_traces(TracingConfig(), folder=tmp_path, service="sokoban")
    second.add([span(3)])
    second.close()
    text = path.read_text()
    events = json.loads(text)
    assert [event["name"] for event in events if event["ph"] == "b"][:1] == ["span 1"]
    assert [event["name"] for event in events][-2:] == ["span 3", "span 3"]
    third = open_traces(TracingConfig(), folder=tmp_path, service="sokoban")
    third.close()
    assert json.loads(path.read_text())[: len(events)] == events


def test_a_share_of_the_traces_is_kept_and_the_same_by_every_program(tmp_path: Path) -> None:
    programs = [open_traces(TracingConfig(share=0.25), folder=tmp_path / name, service="s") for name in "ab"]
    wanted = [[traces.wants(trace_id(number)) for number in range(999)] for traces in programs]
    assert wanted[0] == wanted[1] and 200 < sum(wanted[0]) < 300
    assert not open_traces(None, folder=tmp_path, service="s").wants(trace_id(1))


@pytest.mark.parametrize("written", [True, "file", {}])
def test_a_word_alone_is_a_file_and_an_address_a_collector(written: object) -> None:
    assert TracingConfig.model_validate(written).endpoint is None
    assert TracingConfig.model_validate("http://localhost:4318/v1/traces").endpoint == "http://localhost:4318/v1/traces"
    with pytest.raises(ValueError, match="endpoint"):
        TracingConfig.model_validate("localhost:4318")
