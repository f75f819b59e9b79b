"""Text of strangers (an environment, a data file, a server) on its way to a terminal."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but tab and newline, C1, what turns the direction of writing around, and halves of characters that no file takes.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain_text(text: str) -> str:
    r"""Return ``text`` so that a terminal shows it and does not obey it: without colours, other codes as ``\x1b``."""
    return _CONTROL.sub(_written, _COLOUR.sub("", text))


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
