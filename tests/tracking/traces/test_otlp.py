"""Spans arrive at a collector as they are: a stand-in made of OpenTelemetry's own messages takes them."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import TestCase

import pytest

from roll.config.tracing import TracingConfig
from roll.tracking.traces import Span, open_traces, span_id, trace_id

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytest.importorskip("opentelemetry.proto")
from collector import collector  # noqa: E402 - needs the messages

WHOLE = Span(trace_id("a"), span_id("whole"), "trajectory", 1700000000.25, 1700000001.5, None, {"tag": "t", "turns": 2})
PART = Span(WHOLE.trace, span_id("part"), "generate", 1700000000.5, 1700000001.0, WHOLE.number, {}, "it broke")


def test_spans_arrive_with_ids_times_attributes_and_errors(tmp_path: Path) -> None:
    with collector() as (address, requests, headers):
        config = TracingConfig(endpoint=address, headers={"x-key": "1"})
        traces = open_traces(config, folder=tmp_path, service="sokoban")
        traces.add([WHOLE, PART])
        traces.close()
        traces.close()
    sent = [
        span for each in requests for part in each.resource_spans for scope in part.scope_spans for span in scope.spans
    ]
    whole, part = sent
    (resource,) = {
        attribute.value.string_value
        for each in requests
        for place in each.resource_spans
        for attribute in place.resource.attributes
        if attribute.key == "service.name"
    }
    assert resource == "sokoban" and all(each["x-key"] == "1" for each in headers)
    assert (int.from_bytes(whole.trace_id), int.from_bytes(whole.span_id)) == (WHOLE.trace, WHOLE.number)
    assert whole.parent_span_id == b"" and int.from_bytes(part.parent_span_id) == WHOLE.number
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (1700000000_250000000, 1700000001_500000000)
    values = {each.key: each.value for each in whole.attributes}
    assert values["tag"].string_value == "t" and values["turns"].int_value == 2
    assert part.status.message == "it broke" and part.status.code == part.status.STATUS_CODE_ERROR
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_collector_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    with collector() as (address, _, _):
        pass
    traces = open_traces(TracingConfig(endpoint=address), folder=tmp_path, service="sokoban")
    with TestCase().assertLogs("opentelemetry.exporter") as logged:
        traces.add([WHOLE])
        traces.close()
    assert any("export" in each.lower() for each in logged.output)


def test_without_the_packages_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "roll.tracking.traces.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ImportError, match=r"roll-rl\[monitoring\]"):
        open_traces(TracingConfig(endpoint="http://127.0.0.1:1/v1/traces"), folder=tmp_path, service="sokoban")
