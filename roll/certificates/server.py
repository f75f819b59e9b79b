"""A process that forks another one for each probe.

An environment may hang, crash, or change whatever is shared within a process. A fork costs milliseconds where a new
interpreter takes a second, and the interpreter's hash seed is that of this process.

Requests and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic  # by name: a probe moves the clock of everybody else
from typing import Any

from roll.certificates.target import Target, find

PREPARE = "prepare"
"""The probe that this process runs itself: what it imports, its children have got already."""


def serve() -> None:
    """Answer requests until standard input ends."""
    from roll.certificates.probes import PROBES

    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    for line in sys.stdin:
        request = json.loads(line)
        target = Target(**request["target"])
        if request["probe"] == PREPARE:
            find(target)
            for name in request["arguments"]["imported"]:
                with contextlib.suppress(Exception):  # a module that somebody made, and that no file holds
                    importlib.import_module(name)
            gc.freeze()  # else every collection of a child goes through, and copies, all that was imported
            answer: dict[str, Any] = {"value": threading.active_count()}
        else:
            probe = partial(PROBES[request["probe"]], **request["arguments"])
            answer = _in_child(probe, target, request["call_seconds"], nowhere)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Doing:
    """What a child does and since when, in memory that its parent reads.

    A message for each call would take longer than many environments take for a step.
    """

    _HEAD = struct.Struct("dI")
    _SIZE = 4096

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, self._SIZE)
        self.note("starting")

    def note(self, text: str) -> None:
        """Say what comes next."""
        said = text.encode(errors="backslashreplace")[: self._SIZE - self._HEAD.size]
        self._shared[self._HEAD.size : self._HEAD.size + len(said)] = said
        self._HEAD.pack_into(self._shared, 0, monotonic(), len(said))

    @property
    def since(self) -> float:
        """When it was said last, in seconds of this machine's monotonic clock."""
        return float(self._HEAD.unpack_from(self._shared)[0])

    def __str__(self) -> str:
        length = self._HEAD.unpack_from(self._shared)[1]
        return self._shared[self._HEAD.size : self._HEAD.size + length].decode(errors="replace")


def _in_child(probe: Callable[..., Any], target: Target, call_seconds: float, nowhere: int) -> dict[str, Any]:
    """Run a probe in a child; return its value, or what became of it."""
    doing = _Doing()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        os.dup2(nowhere, 0)
        _run(probe, target, doing, writing)
    os.close(writing)
    try:
        return _answer_of(child, doing, reading, call_seconds)
    finally:
        os.close(reading)


def _run(probe: Callable[..., Any], target: Target, doing: _Doing, writing: int) -> None:
    """Run the probe, as the child, and leave."""
    answer: dict[str, Any]
    try:
        doing.note("its import")
        answer = {"value": probe(doing.note, find(target))}
    except BaseException as error:  # also sys.exit() of an environment: the parent must learn of it
        answer = {"raised": type(error).__name__, "message": str(error)}
    text = json.dumps(answer).encode() + b"\n"
    while text:
        text = text[os.write(writing, text) :]
    os._exit(0)


def _answer_of(child: int, doing: _Doing, reading: int, call_seconds: float) -> dict[str, Any]:
    """Wait for the answer of a child for as long as it makes progress."""
    parts: list[bytes] = []
    progress = monotonic()
    while True:
        progress = max(progress, doing.since)
        left = progress + call_seconds - monotonic()
        if left <= 0:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"hung": call_seconds, "doing": str(doing)}
        ready, _, _ = select.select([reading], [], [], left)
        if not ready:
            continue
        data = os.read(reading, 1 << 20)
        if not data:
            _, status = os.waitpid(child, 0)
            return {"died": _how(os.waitstatus_to_exitcode(status)), "doing": str(doing)}
        progress = monotonic()
        parts.append(data)
        if data.endswith(b"\n"):
            _kill_group(child)
            answer: dict[str, Any] = json.loads(b"".join(parts))
            return answer


def _kill_group(child: int) -> None:
    """End what the child has started, and itself if a thread keeps it."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)


def _how(code: int) -> str:
    if code >= 0:
        return f"it left with exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
