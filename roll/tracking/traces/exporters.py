"""Where spans go: what a configuration asks for."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from roll.config.tracing import TracingConfig
from roll.tracking.traces.perfetto import PerfettoFile
from roll.tracking.traces.spans import Span

TRACE_FILE = "trace.json"


class Exporter(Protocol):
    """Takes spans."""

    def export(self, spans: Iterable[Span]) -> None:
        """Take spans that are over; may keep them for a while."""
        ...

    def close(self) -> None:
        """Write out everything; may be called twice."""
        ...


class Traces:
    """The spans of a run; without an exporter nothing is made of them.

    Args:
        exporter: Where they go.
        share: Share of the traces that are kept: which ones follows from their ids, so all programs keep the same.
    """

    def __init__(self, exporter: Exporter | None = None, share: float = 1.0) -> None:
        self._exporter = exporter
        self._share = share
        self.number = random.getrandbits(128) or 1
        """Id of the trace of the run itself."""

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._exporter is not None

    def wants(self, trace: int) -> bool:
        """Whether the spans of a trace are kept."""
        return self.is_on and trace < self._share * 2**128

    def add(self, spans: Iterable[Span]) -> None:
        """Keep spans that are over."""
        if self._exporter is not None:
            self._exporter.export(spans)

    def close(self) -> None:
        """Write out everything; twice is harmless."""
        if self._exporter is not None:
            self._exporter.close()


def open_traces(config: TracingConfig | None, *, folder: Path, service: str) -> Traces:
    """Return what keeps the spans of a run.

    Args:
        config: What is asked for; ``None`` for no traces.
        folder: Where the file goes, where no collector is named.
        service: What the run is called.

    Raises:
        ImportError: A collector is named, and the package that sends to it is not installed.
    """
    if config is None:
        return Traces()
    if config.endpoint is None:
        folder.mkdir(parents=True, exist_ok=True)
        return Traces(PerfettoFile(folder / TRACE_FILE, service), config.share)
    from roll.tracking.traces.otlp import OtlpExporter

    return Traces(OtlpExporter(config.endpoint, config.headers, service), config.share)
