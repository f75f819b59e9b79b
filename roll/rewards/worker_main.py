"""The child process that calls a grading function: one frame with the function, then a frame for each call.

It runs as a file of its own. A call that takes too long ends the process: a grader may hang inside C code, where no
exception of ours could arrive.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MOST_PRINTED = 10_000
"""Characters of what one call prints that are passed on."""


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next frame; ``None`` at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return stream.read(struct.unpack("!Q", head)[0])


def frame(content: bytes) -> bytes:
    """Return ``content`` with its length before it."""
    return struct.pack("!Q", len(content)) + content


def main() -> None:
    """Serve until the parent closes its end."""
    requests, replies = _take_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    setup = pickle.loads(read_frame(requests) or b"")
    function = _function(setup)
    replies.write(json.dumps({"ready": True}).encode() + b"\n")
    replies.flush()
    while (received := read_frame(requests)) is not None:
        timeout, content = pickle.loads(received)
        replies.write(json.dumps(_answer(function, content, timeout)).encode() + b"\n")
        replies.flush()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for frames: what graders print goes to standard error, and they have nothing to read."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies


def _function(setup: dict[str, Any]) -> Callable[..., Any]:
    sys.path[:] = setup["path"]
    if setup["memory"]:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    if setup["is_silent"]:
        logging.disable(logging.CRITICAL)
    for name, file in setup["files"]:
        _load(name, file)
    function: Callable[..., Any] = pickle.loads(setup["function"])
    for module in setup["modules"]:  # before the clock of the first call starts
        importlib.import_module(module)
    return function


def _load(name: str, file: str) -> None:
    """Import a file under the name that its functions have in the parent."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _answer(function: Callable[..., Any], content: bytes, timeout: float) -> dict[str, Any]:
    """Call the function under its time limit."""
    printed = io.StringIO()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            answer = {"value": function(*pickle.loads(content))}
    except BaseException as error:  # the parent makes a verdict of it; user code may even call sys.exit()
        answer = {"error": describe(error)}
    signal.setitimer(signal.ITIMER_REAL, 0)
    if printed.tell():
        answer["printed"] = printed.getvalue()[-MOST_PRINTED:]
    return answer


def describe(error: BaseException) -> str:
    """Return an exception in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


if __name__ == "__main__":
    main()
