"""A program on a pseudo-terminal, and what a person sees of it: the screen is kept by a terminal emulator (pyte)."""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

from tests import programs

SECOND_SCREEN = re.compile(rb"\x1b\[\?1049([hl])")  # pyte knows no second screen
CTRL_C = b"\x03"
# What the terminal of whoever runs the tests, or their CI, says of itself.
HIDDEN = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "COLORTERM")
PATIENCE = 240.0  # seconds: a loaded machine with two cores


class Terminal:
    """Runs a program as the shell of a terminal does: in a session of its own, which Ctrl-C reaches as a key.

    Args:
        words: The command line.
        cwd: Where to run it.
        rows: Height in lines.
        columns: Width in cells.
        cold: Start a new Python, instead of a fork of one that has imported everything.
        variables: The environment beside that of the tests.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        *,
        rows: int = 24,
        columns: int = 80,
        cold: bool = False,
        **variables: str,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self._theirs = theirs  # kept open: what a program wrote last stays readable after its end
        self.first = _Screen(rows, columns)
        self.second = _Screen(rows, columns)
        self.on_second = False
        self.written, self._rest = b"", b""
        self.shown: tuple[str, ...] = ()  # the pictures on the second screen, one after the other
        self.resize(rows, columns)
        self._modes = termios.tcgetattr(theirs)
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        environment |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **variables}
        self._process: programs.WarmProgram | subprocess.Popen[bytes]
        if cold or not programs.can_fork(words):
            take = functools.partial(os.login_tty, theirs)
            self._process = subprocess.Popen(
                words, cwd=cwd, env=environment, start_new_session=True, pass_fds=[theirs], preexec_fn=take
            )
        else:
            self._process = programs.fork(words, cwd, environment, [theirs], terminal=True)

    @property
    def screen(self) -> list[str]:
        """What is on the screen now."""
        return (self.second if self.on_second else self.first).lines()

    @property
    def left_behind(self) -> str:
        """What stays on the terminal for its owner to scroll through."""
        return self.first.everything()

    def see(self, text: str) -> None:
        """Wait until a text is on the screen."""
        if not self.read_until(lambda: any(text in line for line in self.screen)):
            raise AssertionError(f"{text!r} never came up. The screen:\n" + "\n".join(self.screen))

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._ours, keys)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the kernel tells the program."""
        for screen in (self.first, self.second):
            screen.screen.resize(rows, columns)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def finish(self) -> int:
        """Wait for the end; return the exit status."""
        if not self.read_until(lambda: self._process.poll() is not None):
            raise AssertionError("it does not end. The screen:\n" + "\n".join(self.screen))
        self.read_until(lambda: not select.select([self._ours], [], [], 0.05)[0])
        status = self._process.poll()
        assert status is not None
        return status

    def interrupt(self) -> int:
        """Press Ctrl-C, and again if nothing happens; return the exit status.

        Of a signal that comes between the moment when Python writes a prompt and the one when it reads, Python knows
        only once something is typed.
        """
        for _ in range(6):
            self.press(CTRL_C)
            if self.read_until(lambda: self._process.poll() is not None, PATIENCE / 12):
                break
        return self.finish()

    def assert_given_back(self) -> None:
        """Check that a shell can go on: first screen, cursor in the first column and visible, plain text, echo."""
        cursor = self.first.screen.cursor
        assert not self.on_second, "the second screen is still shown"
        assert not cursor.hidden, "the cursor is hidden"
        assert cursor.x == 0, f"the prompt would follow {self.screen[cursor.y]!r}"
        assert cursor.attrs == pyte.screens.Char(" "), f"the shell's text would be {cursor.attrs}"
        assert self.first.screen.mode == pyte.Screen(80, 24).mode, "a mode of the terminal is left on"
        assert termios.tcgetattr(self._theirs) == self._modes, "the line discipline is changed"

    def read_until(self, done: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Read what the program writes until something holds; return whether it did in time."""
        deadline = time.monotonic() + patience
        while not done():
            if time.monotonic() > deadline:
                return False
            if select.select([self._ours], [], [], 0.05)[0]:
                self._take(os.read(self._ours, 65536))
        return True

    def _take(self, data: bytes) -> None:
        # A sequence that is cut in two by the buffer of the terminal waits for its end.
        data, self._rest = _whole(self._rest + data)
        self.written += data
        for number, piece in enumerate(SECOND_SCREEN.split(data)):
            if number % 2:
                self.on_second = piece == b"h"
                if self.on_second:
                    self.second.screen.reset()
            else:
                (self.second if self.on_second else self.first).feed(piece)
                if self.on_second and piece:
                    self.shown += ("\n".join(self.screen),)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)


class _Screen:
    """A screen with everything that scrolled off it."""

    def __init__(self, rows: int, columns: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

    def lines(self) -> list[str]:
        # Not the emulator's `display`, which fails where half of a wide character was drawn over: a cell is empty then.
        buffer, columns = self.screen.buffer, range(self.screen.columns)
        return ["".join(buffer[row][column].data for column in columns) for row in range(self.screen.lines)]

    def everything(self) -> str:
        columns = range(self.screen.columns)
        above = ["".join(line[column].data for column in columns) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.lines()]).rstrip()


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """Split off a control sequence that is not complete."""
    start = data.rfind(b"\x1b")
    if start >= 0 and re.fullmatch(rb"\x1b(\[[0-9;?]*)?", data[start:]):
        return data[:start], data[start:]
    return data, b""
