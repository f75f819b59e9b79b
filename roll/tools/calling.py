"""Calls of tools at the same time, each with a time of its own."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from roll.common.unavailable import UnavailableError
from roll.tools.errors import WrongCallError
from roll.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Call:
    """A tool, and the arguments that it is called with."""

    tool: Tool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Come:
    """What a call came to.

    Attributes:
        text: What the policy is told.
        kind: As what it counts where it gave no result: the policy's mistake, or the tool's.
    """

    text: str
    kind: Literal["", "tool_calls_wrong", "tool_failures"] = ""

    @classmethod
    def wrong(cls, error: WrongCallError) -> Come:
        """Return what a call comes to that cannot be answered as it is written."""
        return cls(f"error: {error}", "tool_calls_wrong")


def call_all(calls: Sequence[Call | Come], seconds: float) -> list[Come]:
    """Make calls at the same time; those of one lane (:attr:`Tool.lane`) one after the other.

    Args:
        calls: What to call, or what a call came to already.
        seconds: For each call, from when it begins.

    Returns:
        What they came to, in their order.

    Raises:
        UnavailableError: What a tool needs is not there; the others have ended by then.
    """
    lanes: dict[object, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        if isinstance(call, Call):
            lanes[number if call.tool.lane is None else id(call.tool.lane), call.tool.lane is None].append(number)
    come: dict[int, Come] = {number: call for number, call in enumerate(calls) if isinstance(call, Come)}

    def run(lane: list[int]) -> None:
        for number in lane:
            call = calls[number]
            assert isinstance(call, Call)
            come[number] = _come_to(call, seconds)

    if len(lanes) > 1:
        with ThreadPoolExecutor(len(lanes), "tool-calls") as pool:
            for made in [pool.submit(run, lane) for lane in lanes.values()]:
                made.result()
    else:
        for lane in lanes.values():
            run(lane)
    return [come[number] for number in range(len(calls))]


def _come_to(call: Call, seconds: float) -> Come:
    """Return what a call came to.

    Raises:
        UnavailableError: What the tool needs is not there, or one that reaches other machines took too long.
    """
    try:
        return Come(_within(seconds, call))
    except WrongCallError as error:
        return Come.wrong(error)
    except UnavailableError:
        raise
    except _TooLongError as error:
        if call.tool.risk == "network":
            raise UnavailableError(f"tool {call.tool.name!r} gave {error}") from error
        return Come(f"error: {call.tool.name} gave {error}", "tool_failures")
    except Exception as error:  # A tool is somebody's code; what it raises is told to the policy.
        return Come(f"error: {call.tool.name} failed: {type(error).__name__}: {error}", "tool_failures")


class _TooLongError(Exception):
    """A call took longer than it may."""


def _within(seconds: float, call: Call) -> str:
    """Call a tool in a thread that is given up when its time is over.

    Raises:
        _TooLongError: It took longer.
        Exception: What it raised.
    """
    outcome: list[tuple[str, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call.tool.run(call.arguments), None))
        except BaseException as error:  # told to whoever waits
            outcome.append(("", error))

    thread = threading.Thread(target=run, name=f"tool-{call.tool.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise _TooLongError(f"no result after {seconds:g} s")
    text, error = outcome[0]
    if error is not None:
        raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    return text
