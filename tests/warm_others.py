"""Programs of libraries that are installed apart, forked from a warm process of each environment.

Such a library takes five to ten seconds of processor time to import, and what a test does with it half a second.
:func:`python_of` returns what a test names in the place of the environment's ``python``; whatever that program starts
with its ``sys.executable`` is forked too. Not for what is shut in: the warm process stands outside.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[0] = str(_HERE.parents[1])
from tests.programs import (  # noqa: E402  (found from here too, as a program)
    FOLDER_VARIABLE,
    OWNER_VARIABLE,
    ROOT,
    Other,
    WarmProgram,
    connect,
    start,
)


def environment_of(name: str) -> Path:
    """Return the Python of an environment that is installed apart, or where it would be."""
    return ROOT / ".venv" / name / "bin" / "python"


def python_of(name: str) -> Path:
    """Return a Python that has imported the library of an environment before it starts.

    Args:
        name: Of a folder in ``.venv``, and of what is imported: a key of ``warm_server.IMPORTS``.
    """
    other = _other(name)
    if not other.command.exists():
        own = other.command.parent.with_name(f"{name}-{os.getpid()}")
        own.mkdir()
        for program in other.python.parent.iterdir():
            if not program.name.startswith("python"):
                (own / program.name).symlink_to(program)
        python = own / "python"
        variables = " ".join(f"{name}={os.environ[name]}" for name in (FOLDER_VARIABLE, OWNER_VARIABLE))
        python.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} -SE {_HERE} {name} "$@"\n')
        python.chmod(0o755)
        with contextlib.suppress(OSError):  # another process of these tests made it meanwhile
            own.rename(other.command.parent)
    # Started here: it would keep the streams open of the program that starts it.
    connect(name, _variables(os.environ), other).close()
    return other.command


def start_there(
    name: str, words: Sequence[str], cwd: Path, environment: Mapping[str, str], streams: Sequence[int]
) -> WarmProgram:
    """Fork a program from the warm process of an environment; see :func:`tests.programs.start`."""
    return start(name, words, cwd, _variables(environment), streams, other=_other(name))


def _other(name: str) -> Other:
    return Other(environment_of(name), Path(os.environ[FOLDER_VARIABLE]) / name / "python")


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "OMP_NUM_THREADS": "1"}


def main() -> int:
    """Run the program whose command line follows the name of an environment, to its end."""
    name, *words = sys.argv[1:]
    words = [word for number, word in enumerate(words) if word != "-u" or number]
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        python = environment_of(name)
        os.execv(python, [str(python), *words])
    return start_there(name, words, Path.cwd(), os.environ, [0, 1, 2]).wait()


if __name__ == "__main__":
    sys.exit(main())
