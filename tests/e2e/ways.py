"""Follows calls from a program to functions: ``python ways.py MODULE FUNCTION … -- PROGRAM [ARGUMENT …]``.

Runs the program, and waits for the first call of each FUNCTION (its qualified name in MODULE). It writes the way there
as JSON: who called whom, from the program on; and leaves when it has them all. A task knows who made it, so the way
does not end at the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable
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


def follow(places: list[tuple[str, str]], program: str, arguments: list[str]) -> None:
    """Run ``program`` until it has called every function of ``places``; print the ways there and leave."""
    wanted = set(places)

    def reached(place: tuple[str, str], file: str, caller: FrameType | None) -> None:
        if place in wanted:
            wanted.remove(place)
            way = [*way_to(caller), (file, place[1])]
            sys.__stdout__.write("\nWAY " + json.dumps(way) + "\n")
            sys.__stdout__.flush()
        if not wanted:
            os._exit(0)

    for place in places:
        _announce(place, reached)
    asyncio.set_event_loop_policy(_Policy())
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def _announce(place: tuple[str, str], reached: Callable[[tuple[str, str], str, FrameType | None], None]) -> None:
    """Put a function in the place of one that says first who calls it; not a profiler, which hears of every call."""
    module, name = place
    *names, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for each in names:
        owner = getattr(owner, each)
    function = getattr(owner, last)
    file = inspect.unwrap(function).__code__.co_filename

    @functools.wraps(function)
    def announced(*args: Any, **kwargs: Any) -> Any:
        reached(place, str(Path(file).relative_to(ROOT)) if file.startswith(OURS) else file, sys._getframe(1))
        return function(*args, **kwargs)

    setattr(owner, last, announced)


if __name__ == "__main__":
    end = sys.argv.index("--")
    named = sys.argv[1:end]
    follow(list(zip(named[::2], named[1::2], strict=True)), sys.argv[end + 1], sys.argv[end + 2 :])
