"""Examples below the help of a command."""

from __future__ import annotations


def examples(*lines: str) -> str:
    r"""Return the epilog that shows ``lines`` as they are: ``@app.command(epilog=examples("roll train sokoban"))``."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
