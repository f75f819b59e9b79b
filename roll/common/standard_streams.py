"""Standard output that shows what it can, in any locale; for programs."""

from __future__ import annotations

import codecs
import io
import sys
from contextlib import suppress

_PLAIN = {"→": "->", "←": "<-", "–": "-", "—": "-", "−": "-", "…": "...", "≥": ">=", "≤": "<=", "’": "'", "×": "x"}
_HANDLER = "roll.plain"


def show_what_can_be_shown() -> None:
    """Let standard output write something plain for a letter that its encoding lacks, and not raise.

    A terminal of a Latin-1 locale has no arrows, and a level of Sokoban or an answer may have any letter.
    """
    codecs.register_error(_HANDLER, _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Python asks where a file is at, behind the change; something else may be there by now under its number.
        with suppress(OSError):
            sys.stdout.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
