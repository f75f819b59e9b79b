"""What a run writes to standard output and error while the dashboard owns the terminal."""

from __future__ import annotations

import codecs
import io
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

_KEPT_LINES = 200


class CapturedOutput:
    """Stands in for standard output and error, and for log handlers that write to them.

    Args:
        show: Called with each line of standard error that does not continue another.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lines: deque[tuple[TextIO, str]] = deque(maxlen=_KEPT_LINES)
        self._streams: tuple[TextIO, TextIO] | None = None
        self._stand_ins: list[_StandIn] = []

    def begin(self) -> None:
        """Take the streams."""
        self._streams = sys.stdout, sys.stderr
        self._stand_ins = [_StandIn(sys.stdout, self._take_output), _StandIn(sys.stderr, self._take_error)]
        _exchange_log_streams({id(stand_in.original): stand_in.text for stand_in in self._stand_ins})
        sys.stdout, sys.stderr = (stand_in.text for stand_in in self._stand_ins)

    def end(self) -> None:
        """Give the streams back, and write to them what was kept."""
        if self._streams is None:
            return
        for stand_in in self._stand_ins:
            stand_in.take_rest()
        _exchange_log_streams({id(stand_in.text): stand_in.original for stand_in in self._stand_ins})
        (sys.stdout, sys.stderr), self._streams = self._streams, None
        while self._lines:
            _write(*self._lines.popleft())

    def _take_output(self, stream: TextIO, line: str) -> None:
        """Keep a line. Who holds on to a stand-in for longer than it stands in writes to the stream itself."""
        if self._streams is None:
            _write(stream, line)
        else:
            self._lines.append((stream, line))

    def _take_error(self, stream: TextIO, line: str) -> None:
        """Keep a line and show it; an indented one only continues another (a source line, a traceback)."""
        self._take_output(stream, line)
        if line.strip() and not line[0].isspace():
            self._show(line)


class _StandIn(io.RawIOBase):
    """Cuts what is written to it into lines. ``text`` is a stream like the original, with ``buffer`` and the rest."""

    def __init__(self, original: TextIO, take: Callable[[TextIO, str], None]) -> None:
        self.original = original
        self._take = take
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self.text = io.TextIOWrapper(self, "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]

    def writable(self) -> bool:
        """Return true."""
        return True

    def fileno(self) -> int:
        """Return the original's descriptor: subprocesses are given it."""
        return self.original.fileno()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Hand on the lines that are complete; a carriage return starts a line again, as on a terminal."""
        *complete, rest = (self._rest + self._decode(bytes(data))).split("\n")
        for line in complete:
            self._take(self.original, line.rstrip("\r").rpartition("\r")[2])
        # A progress bar writes carriage returns for hours and ends no line.
        self._rest = rest.rpartition("\r")[2] or rest[-1000:]
        return len(data)

    def take_rest(self) -> None:
        """Hand on a line that was begun and not ended."""
        rest, self._rest = self._rest.rstrip("\r"), ""
        if rest:
            self._take(self.original, rest)


def _exchange_log_streams(streams: Mapping[int, TextIO]) -> None:
    """Let log handlers that write to the stream with one of these ids write to the one given for it instead."""
    known = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for handler in {handler for logger in known if isinstance(logger, logging.Logger) for handler in logger.handlers}:
        # Handlers belong to whatever was imported: some have no stream, or look it up anew for each record and let
        # nobody set it, and some raise what they like. Those are left as they are.
        with suppress(Exception):
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in streams:
                handler.setStream(streams[id(handler.stream)])


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()
