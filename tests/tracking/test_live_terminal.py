"""The live dashboard on a real pseudo-terminal: it draws, and gives the terminal back however the run ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

pytestmark = pytest.mark.processes

RUN = r"""
import logging, sys, time, warnings
from roll.tracking import RunSummary, make_progress

logging.basicConfig()
mode = sys.argv[1]


class NoStream(logging.StreamHandler):
    def __init__(self):
        logging.Handler.__init__(self)

    def emit(self, record):
        pass

    flush = close = lambda self: None


class Raising(NoStream):
    @property
    def stream(self):
        raise OSError("no stream today")


# What torch brings along by way of dill, and worse.
logging.getLogger("dill").addHandler(logging._StderrHandler(logging.WARNING))
logging.getLogger("dill").propagate = logging.getLogger("made later").propagate = False
logging.getLogger("without a stream").addHandler(NoStream())
logging.getLogger("raising").addHandler(Raising())
sys.breakpointhook = lambda: print("at the breakpoint")
with make_progress("auto") as progress:
    progress.start(4, "sokoban", "toy policy")
    for step in range(1, 5):
        with progress.stage("rollout"):
            progress.rollout_progress(step, 512, 1000)
            if mode == "ok" and step == 2:
                sys.stdin.readline()  # until the picture of this moment was seen
        progress.step_done(step, {"reward/mean": float(step), "rollout/success": step / 10})
        if step == 1:
            print("printed by the run")
            logging.warning("logged by the run")
            logging.getLogger("dill").warning("logged by dill")
            logging.getLogger("made later").addHandler(logging.StreamHandler())
            sys.stdout.buffer.write(b"bytes of the run\n")
            sys.stdout.write("a line without an end")
        if step == 2 and mode == "raise":
            raise RuntimeError("the env is on fire")
        if step == 2 and mode == "hang":
            time.sleep(600)
        if step == 2 and mode == "break":
            breakpoint()
    progress.finish(RunSummary("sokoban", 4, 1.0, {"val/success": 0.5}, {"val/success": 0.75}))
logging.getLogger("made later").warning("logged after the run")
"""
ENTER, LEAVE, SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?25l"


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def run_on_terminal(mode: str, *, interrupt: bool = False, resize: bool = False) -> tuple[bytes, int]:
    """Run on an 80×24 terminal; return what it wrote and its exit status."""
    ours, theirs = pty.openpty()
    set_size(theirs, 24, 80)
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "TERM": "xterm-256color",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHON_COLORS": "0",  # else Python 3.13 colours its tracebacks
    }
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, mode], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    output, deadline = b"", time.monotonic() + 240
    answered, seen = False, 0  # the run waits for an answer; what was written before a resize does not count
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # Linux: the other side is closed
                    break
                if not chunk:
                    break
                output += chunk
            if resize and b"step 1/4" in output:
                set_size(ours, 12, 50)
                process.send_signal(signal.SIGWINCH)
                resize, seen = False, len(output)
            elif mode == "ok" and not answered and b"2/512 trajectories" in output[seen:]:
                os.write(ours, b"\n")
                answered = True
            if interrupt and b"step 2/4" in output:
                process.send_signal(signal.SIGINT)
                interrupt = False
        return output, process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def assert_terminal_is_given_back(output: bytes) -> str:
    """Check the control sequences; return the text that stays on the terminal."""
    assert output.count(ENTER) == 1 and output.count(LEAVE) == 1
    assert output.index(ENTER) < output.index(LEAVE)
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)
    return output[output.index(LEAVE) + len(LEAVE) :].decode()


@pytest.mark.parametrize("resize", [False, True])
def test_a_run_to_the_end_leaves_the_last_picture_and_the_summary(resize: bool) -> None:
    output, status = run_on_terminal("ok", resize=resize)
    after = assert_terminal_is_given_back(output)
    assert status == 0
    live = output[: output.index(LEAVE)].decode()
    assert "step 1/4" in live and "2/512 trajectories" in live
    assert "printed by the run" in after and "logged by the run" in after
    for said in ("logged by dill", "bytes of the run", "a line without an end", "logged after the run"):
        assert after.splitlines().count(said) == 1  # the picture shows the last one once more, beside its sign
    assert "step 4/4" in after and "+25.0 points" in after


def test_an_exception_gives_the_terminal_back_before_its_traceback() -> None:
    output, status = run_on_terminal("raise")
    after = assert_terminal_is_given_back(output)
    assert status == 1
    assert after.index("logged by the run") < after.index("RuntimeError: the env is on fire")


def test_ctrl_c_gives_the_terminal_back() -> None:
    output, status = run_on_terminal("hang", interrupt=True)
    after = assert_terminal_is_given_back(output)
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in after


def test_a_breakpoint_gives_the_terminal_back_first() -> None:
    output, status = run_on_terminal("break")
    after = assert_terminal_is_given_back(output)
    assert status == 0
    assert "at the breakpoint" in after and "+25.0 points" in after
