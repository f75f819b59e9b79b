"""The tool ``python``: runs what the policy wrote in the sandbox."""

from __future__ import annotations

import ast

from roll.sandbox import Limits, Outcome, Reason, run_python_sync
from roll.tools.registry import register_tool

_STOPPED = {
    Reason.TIMEOUT: "it took longer than {limits.seconds:g} s",
    Reason.MEMORY: "it needs more than {limits.memory_mb} MiB of memory",
    Reason.OUTPUT: "it printed more than {limits.output_bytes} bytes",
    Reason.SIGNAL: "it crashed",
}
_TRACEBACK_LINES = 6
_SILENT = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({code!r}, globals())\n"


@register_tool("python", risk="code")
class Python:
    """Runs programs in :mod:`roll.sandbox`: without network, files or other processes.

    Args:
        keep: Whether names stay from one call of an episode to the next. The programs that went well are then run again
            before each, without their output; what draws random numbers or asks the clock may differ.
        seconds: Wall time of a call; keep it below ``tool_use.timeout``.
        memory_mb: Address space, in MiB.
        site_packages: Whether installed packages can be imported; else the standard library alone.
    """

    def __init__(
        self, *, keep: bool = False, seconds: float = 5.0, memory_mb: int = 512, site_packages: bool = False
    ) -> None:
        self._limits = Limits(seconds=seconds, memory_mb=memory_mb)
        self._keep = keep
        self._site_packages = site_packages
        self._earlier: list[str] = []
        self.at_the_same_time = not keep

    def __call__(self, code: str) -> str:
        """Run a Python program, and return what it prints and the value of its last line.

        Args:
            code: The program.
        """
        before = "".join(_SILENT.format(code=each) for each in self._earlier)
        outcome = run_python_sync(
            f"{before}exec(compile({_showing(code)!r}, 'program', 'exec'), globals())\n",
            limits=self._limits,
            site_packages=self._site_packages,
        )
        if self._keep and outcome.reason is Reason.OK:
            self._earlier.append(code)
        return _told(outcome, self._limits)


def _showing(code: str) -> str:
    """Return a program that prints the value of its last line too, where that is an expression."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # Python tells what is wrong with it.
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return code
    last = tree.body[-1].value
    shown = ast.parse("(lambda value: None if value is None else print(value))(0)", mode="eval").body
    assert isinstance(shown, ast.Call)
    shown.args = [last]
    tree.body[-1] = ast.Expr(shown)
    return ast.unparse(ast.fix_missing_locations(tree))


def _told(outcome: Outcome, limits: Limits) -> str:
    said = outcome.stdout.rstrip("\n")
    if outcome.reason is Reason.ERROR:
        trace = "\n".join(outcome.stderr.strip().splitlines()[-_TRACEBACK_LINES:])
        return f"{said}\n{trace}".strip()
    if outcome.reason is not Reason.OK:
        return f"{said}\n(stopped: {_STOPPED[outcome.reason].format(limits=limits)})".strip()
    return said or "(it printed nothing)"
