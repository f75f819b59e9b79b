"""Follows a call from a program to a function: ``python ways.py FILE FUNCTION PROGRAM [ARGUMENT …]``.

Runs the program with a profile function that waits for the first call of FUNCTION (its qualified name, in a file whose
path ends in FILE). It then leaves with the way there as JSON: who called whom, from the program on. A task knows who
made it, so the way does not end at the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = (str(ROOT / "roll") + os.sep, str(ROOT / "examples") + os.sep)

Way = list[tuple[str, str]]
_way_of_task: ContextVar[tuple[Way, int]] = ContextVar("_way_of_task", default=([], 0))


def way_to(frame: FrameType | None) -> Way:
    """Return the calls in this project that led to a frame, itself included, as (file, qualified name)."""
    way: Way = []
    task = _current_task()
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(OURS):
            way.append((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))
        if task is not None and code.co_filename == asyncio.events.__file__ and code.co_name == "_run":
            before, _ = _way_of_task.get()
            return [*before, *reversed(way)]
        frame = frame.f_back
    return way[::-1]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops whose tasks remember the way to where they were made."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        loop.set_task_factory(_remembering)
        return loop


def _remembering(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None, **options: Any) -> Any:
    context = copy_context() if context is None else context
    way = way_to(sys._getframe(1))
    context.run(_way_of_task.set, (way, len(way)))
    return asyncio.Task(coroutine, loop=loop, context=context, **options)


def follow(file: str, function: str, program: str, arguments: list[str]) -> None:
    """Run ``program`` until it calls ``function``; print the way there and leave."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_qualname == function and code.co_filename.endswith(file):
            sys.setprofile(None)
            way = [*way_to(frame.f_back), (file, function)]
            sys.__stdout__.write("\nWAY " + json.dumps(way) + "\n")
            sys.__stdout__.flush()
            os._exit(0)

    asyncio.set_event_loop_policy(_Policy())
    sys.argv = [program, *arguments]
    sys.setprofile(profile)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    follow(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
