"""The process that becomes the untrusted program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` takes five milliseconds to import.
import atexit
import builtins
import os
import sys

from . import kernel, walls

TYPE_CHECKING = False  # ``typing`` takes another six.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, NoReturn

REPORT = 3
"""File descriptor on which a program may report apart from its output."""


def become_program(
    code: str,
    files: Mapping[str, str],
    descriptors: tuple[int, int, int, int],
    around: walls.Walls,
    limits: Mapping[str, Any],
) -> None:
    """Turn this freshly forked process into one that may run ``code``, all but running it.

    Args:
        code: The program; it is written to ``main.py``.
        files: Further files of the working folder.
        descriptors: What becomes its standard input, output, error and report.
        around: The walls.
        limits: The fields of ``Limits`` by name.
    """
    os.setsid()
    kernel.die_with_parent()
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    # Copies first: one of the originals may have the number that another shall get.
    copies = [os.dup(number) for number in descriptors]
    spare = max(copies) + 1
    moved = [os.dup2(number, spare + position) for position, number in enumerate(copies)]
    for position, number in enumerate(moved):
        os.dup2(number, position)
    os.closerange(REPORT + 1, 4096)
    sys.dont_write_bytecode = True
    os.umask(0o077)
    size = int(limits["file_mb"]) << 20
    walls.limit(limits["seconds"], int(limits["memory_mb"]) << 20, size, limits["open_files"], limits["processes"])
    walls.close_door(around)
    os.chdir(around.work)
    for path, text in {**files, "main.py": code}.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    _fresh_interpreter(around.work)


def _fresh_interpreter(work: str) -> None:
    """Make this forked interpreter look like one that was just started."""
    os.environ.update(HOME=work, TMPDIR=work, PWD=work)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [os.path.join(work, "main.py")]
    sys.path.insert(0, work)
    sys.excepthook = _without_our_frames
    # The module ``site`` would define these; programs end themselves with them.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    for name in [name for name in sys.modules if name == "inside" or name.startswith("inside.")]:
        del sys.modules[name]


def _without_our_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception as an interpreter would that had been started with the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename != sys.argv[0]:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def run_program(code: str, namespace: dict[str, Any]) -> NoReturn:
    """Run ``code`` as ``__main__`` and end this process as the interpreter would.

    All but tearing down every module: that takes longer than most programs.
    """
    main = sys.modules["__main__"].__dict__
    main.clear()
    path = sys.argv[0]
    main.update(namespace, __name__="__main__", __builtins__=__builtins__, __file__=path)
    status = 0
    try:
        exec(compile(code, path, "exec", dont_inherit=True), main)
    except SystemExit as ending:
        status = _exit_status(ending.code)
    except BaseException as error:
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # The program closed or replaced it.
            status = status or 120
    os._exit(status)


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
