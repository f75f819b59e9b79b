"""Traces: what happened to an episode when, as spans, to an OTLP collector or into a file that Perfetto reads."""

from roll.tracking.traces.exporters import Traces, open_traces
from roll.tracking.traces.spans import Span, span_id, trace_id

__all__ = ["Span", "Traces", "open_traces", "span_id", "trace_id"]
