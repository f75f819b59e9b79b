"""A process that forks another one for each probe.

An environment may hang, crash, or change whatever is shared within a process. A fork costs milliseconds where a new
interpreter takes a second, and the interpreter's hash seed is that of this process.

Requests and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
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
            answer: dict[str, Any] = {"value": threading.active_count()}
        else:
            probe = partial(PROBES[request["probe"]], **request["arguments"])
            answer = _in_child(probe, target, request["call_seconds"], nowhere)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _in_child(probe: Callable[..., Any], target: Target, call_seconds: float, nowhere: int) -> dict[str, Any]:
    """Run a probe in a child; return its value, or what became of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        os.dup2(nowhere, 0)
        _run(probe, target, writing)
    os.close(writing)
    try:
        return _answer_of(child, reading, call_seconds)
    finally:
        os.close(reading)


def _run(probe: Callable[..., Any], target: Target, writing: int) -> None:
    """Run the probe, as the child, and leave."""

    def note(text: str) -> None:
        os.write(writing, b"N" + json.dumps(text).encode() + b"\n")

    answer: dict[str, Any]
    try:
        note("its import")
        answer = {"value": probe(note, find(target))}
    except BaseException as error:  # also sys.exit() of an environment: the parent must learn of it
        answer = {"raised": type(error).__name__, "message": str(error)}
    text = b"R" + json.dumps(answer).encode() + b"\n"
    while text:
        text = text[os.write(writing, text) :]
    os._exit(0)


def _answer_of(child: int, reading: int, call_seconds: float) -> dict[str, Any]:
    """Wait for the answer of a child for as long as it makes progress."""
    rest, doing = b"", "starting"
    deadline = time.monotonic() + call_seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"hung": call_seconds, "doing": doing}
        data = os.read(reading, 1 << 20)
        if not data:
            _, status = os.waitpid(child, 0)
            return {"died": _how(os.waitstatus_to_exitcode(status)), "doing": doing}
        deadline = time.monotonic() + call_seconds
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line[:1] == b"R":
                _kill_group(child)
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        if lines:
            doing = json.loads(lines[-1][1:])


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
