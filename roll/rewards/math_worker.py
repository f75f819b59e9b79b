"""The child process that compares mathematical expressions: JSON lines in, JSON lines out.

It runs as a file of its own and imports nothing of ``roll``. It kills itself when a comparison takes too long: sympy
may hang inside C code, where no exception of ours could arrive.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

MOST_MEMORY = 4 << 30
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:\s|$)|\s[A-Za-z]{2,}")


@lru_cache(maxsize=512)
def parsed(text: str, whole: bool) -> tuple[Any, ...]:
    """Return what ``text`` may mean, as sympy objects and strings.

    Args:
        text: LaTeX or plain text.
        whole: All of it is the answer; otherwise its last expression is.
    """
    from math_verify import parse

    def read(source: str) -> list[Any]:
        return parse(source, parsing_timeout=None, raise_on_error=True)

    if not whole or _DELIMITED.search(text):
        return tuple(read(text))
    meanings = read(f"${' '.join(text.split())}$")
    if _PROSE.search(text):
        meanings = meanings + [each for each in read(text) if not isinstance(each, str)]
    return tuple(meanings)


def compare(gold: str, answer: str, whole: bool, digits: int) -> dict[str, Any]:
    """Return ``{"equal": bool}``, or ``{"bad_gold": reason}``, or ``{"error": reason}``."""
    from math_verify import verify

    golds = parsed(gold, True)
    if not any(not isinstance(each, str) for each in golds) and re.search(r"[\\\d=+^]", gold):
        return {"bad_gold": "it is no mathematical expression"}
    failure: Exception | None = None
    for each_gold in golds:
        for each_answer in parsed(answer, whole):
            try:
                if verify(each_gold, each_answer, float_rounding=digits, timeout_seconds=None, raise_on_error=True):
                    return {"equal": True}
            except Exception as error:  # another reading may still match; reported below if none does
                failure = error
    if failure is not None:
        return {"error": f"{type(failure).__name__}: {failure}"}
    return {"equal": False}


def answer_line(line: str) -> dict[str, Any]:
    """Answer one request under its time limit."""
    request = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, request["timeout"])
    try:
        return compare(request["gold"], request["answer"], request["whole"], request["digits"])
    except Exception as error:  # the parent makes a verdict of it
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Serve until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    logging.disable(logging.CRITICAL)
    import math_verify  # noqa: F401 - before the clock of the first request starts

    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer_line(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
