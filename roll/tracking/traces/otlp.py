"""Spans to a collector of OpenTelemetry, in its protocol over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise ImportError(
        f"tracing.endpoint needs the packages of OpenTelemetry, which cannot be imported ({error}). Install them with "
        "`pip install 'roll-rl[monitoring]'`, or leave the endpoint out: then a file is written."
    ) from error

import roll
from roll.tracking.traces.spans import Span

_SCOPE = InstrumentationScope("roll", roll.__version__)


class OtlpExporter:
    """Sends spans in the background. A collector that cannot be reached is logged, and stops nothing.

    Args:
        endpoint: Where traces are taken, usually ``http://…:4318/v1/traces``.
        headers: What each request says besides.
        service: What the run is called there.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str], service: str) -> None:
        self._resource = Resource.create({SERVICE_NAME: service})
        self._sender = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint, headers=dict(headers)),
            max_queue_size=1 << 16,
            schedule_delay_millis=1000,
        )

    def export(self, spans: Iterable[Span]) -> None:
        """Hand spans over."""
        for span in spans:
            self._sender.on_end(self._readable(span))

    def close(self) -> None:
        """Send what is left."""
        self._sender.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        status = Status(StatusCode.OK) if span.error is None else Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.number),
            parent=None if span.parent is None else _context(span.trace, span.parent),
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            instrumentation_scope=_SCOPE,
            status=status,
            start_time=round(span.begun * 1e6) * 1000,
            end_time=round(span.ended * 1e6) * 1000,
        )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
