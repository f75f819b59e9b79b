"""Makes a program wait at a certain place until Ctrl-C was pressed.

Named in ``env_modules`` or ``reward_modules``, at the stage of the display that ``ROLL_TEST_HOLD`` names (``import``:
when it is imported). Run as ``python held.py MODULE:FUNCTION PROGRAM ARGUMENTS…``, where the program calls a function.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

STAGE = os.environ.get("ROLL_TEST_HOLD", "none")


def wait_for_ctrl_c(say: Callable[[], object]) -> None:
    """Say so, let Ctrl-C do what it does, and then go on. In the main thread, as the event loop.

    Whoever sees what ``say`` says may press at once, so that is looked for already.
    """
    before = signal.getsignal(signal.SIGINT)
    pressed = []

    def remember(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        assert callable(before)
        before(number, frame)

    signal.signal(signal.SIGINT, remember)
    deadline = time.monotonic() + 200
    try:
        say()
        while not pressed:
            if time.monotonic() > deadline:
                sys.exit("nobody pressed Ctrl-C")
            time.sleep(0.02)
    finally:
        signal.signal(signal.SIGINT, before)


def say_line(text: str) -> None:
    """Write a whole line at once: who sees its beginning may press before its end."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


def hold_stage() -> None:
    """Wait in a stage of the live display."""
    from roll.tracking.dashboard import LiveDashboard

    begins = LiveDashboard._stage_begins
    held = []

    def hold(self: LiveDashboard, name: str) -> None:
        if name == STAGE and not held:
            held.append(name)
            wait_for_ctrl_c(lambda: begins(self, name))
        else:
            begins(self, name)

    LiveDashboard._stage_begins = hold  # type: ignore[method-assign]


def run_held(place: str, program: str, *arguments: str) -> None:
    """Run a script or a module; wait where it calls ``place``."""
    module, _, name = place.partition(":")
    where = importlib.import_module(module)
    function = getattr(where, name)

    def held(*arguments: Any, **keywords: Any) -> Any:
        wait_for_ctrl_c(lambda: say_line(f"now in {name}"))
        return function(*arguments, **keywords)

    setattr(where, name, held)
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        sys.argv[0] = "-m"
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_held(*sys.argv[1:])
elif STAGE == "import":
    wait_for_ctrl_c(lambda: say_line("now in import"))
else:
    hold_stage()
