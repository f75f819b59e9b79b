"""How a program that was given a configuration ends early: what it says, and its exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from roll.config.plain_text import plain_text

EXIT_CONFIG_NAME = 1
"""Exit code where no configuration file has the name given."""

EXIT_UNREAD = 1
"""Exit code where whoever read the output has left."""

EXIT_CONFIG = 2
"""Exit code where the configuration cannot be used."""

EXIT_RUN = 3
"""Exit code where a run cannot go on."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""


def leave(code: int, message: str) -> NoReturn:
    """End the program with a message on standard error.

    Raises:
        SystemExit: With that code.
    """
    sys.stderr.write(f"{plain_text(message)}\n")
    raise SystemExit(code)


def drop_output() -> None:
    """Write to nowhere what is still to come on standard output, whose reader has left (`… --help | head`).

    Python would complain once more when it closes the stream.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
