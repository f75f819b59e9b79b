"""Spans in a file in the trace-event format of Chrome, which Perfetto and ``chrome://tracing`` open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMh4h6I0nSsKchNAySU. A file is an array whose
end may be missing, so one that a killed program left opens too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from roll.tracking.traces.spans import Span

_BEGIN: Final = "[\n"
_END: Final = "\n]\n"


class PerfettoFile:
    """Writes each trace as a track of its own: nestable asynchronous events of one id.

    A run that goes on appends to its file.

    Args:
        path: The file.
        service: What the track group is called.
    """

    def __init__(self, path: Path, service: str) -> None:
        self.path = path
        self._file: TextIO | None = None
        self._first = True
        self._file = self._opened()
        self._write({"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0, "args": {"name": service}})

    def export(self, spans: Iterable[Span]) -> None:
        """Write spans.

        Raises:
            ValueError: The file is closed.
        """
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        for span in spans:
            for event in _events(span):
                self._write(event)
        self._file.flush()

    def close(self) -> None:
        """End the array."""
        if self._file is not None:
            self._file.write(_END)
            self._file.close()
            self._file = None

    def _opened(self) -> TextIO:
        """Open the file behind what it has already, less an end, or what was cut short by a kill."""
        if not self.path.exists() or not self.path.stat().st_size:
            file = self.path.open("w", encoding="utf-8")
            file.write(_BEGIN)
            return file
        text = self.path.read_text(encoding="utf-8", errors="replace").removesuffix(_END)
        whole = text if text.endswith("}") else text[: text.rfind("},\n") + 1]
        self._first = not whole.strip("[\n")
        file = self.path.open("w", encoding="utf-8")
        file.write(_BEGIN if self._first else whole)
        return file

    def _write(self, event: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(("" if self._first else ",\n") + json.dumps(event, allow_nan=False))
        self._first = False


def _events(span: Span) -> list[dict[str, Any]]:
    known = {"cat": "roll", "id": f"0x{span.trace:032x}", "pid": os.getpid(), "tid": 0, "name": span.name}
    arguments = {**span.attributes, **({} if span.error is None else {"error": span.error})}
    return [
        {**known, "ph": "b", "ts": round(span.begun * 1e6), "args": arguments},
        {**known, "ph": "e", "ts": round(span.ended * 1e6)},
    ]
