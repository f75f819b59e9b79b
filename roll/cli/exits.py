"""Exit codes of ``roll``, and the one place where what a command raised becomes one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import typer


class ExitCode(IntEnum):
    """What ``roll`` says to the shell; docs/program.md has the table."""

    FINE = 0
    FAILED = 1
    """Something that nobody foresaw: there is a traceback above."""
    INPUT = 2
    """The configuration, an option or a file that was named cannot be used."""
    UNABLE = 3
    """A run cannot go on, or this machine lacks something; where a command says so, it found what it looks for."""
    INTERRUPTED = 130


def exit_code(command: Callable[[], Any]) -> int:
    """Call ``command``, say on standard error what stopped it, and return the exit code.

    Args:
        command: Its result is the exit code where it is a number (``typer.Exit`` gives one), else it went well.

    Raises:
        SystemExit: The command left by itself.
        Exception: Anything that no user can act on; Python shows the traceback and exits with code 1.
    """
    # Not imported before it is needed: the configuration takes longer than all of `roll --help`.
    try:
        result = command()
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.FINE
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]  # of all that are about the command line, with the usage
        return ExitCode.INPUT
    except (KeyboardInterrupt, typer.Abort) as error:
        return _said(str(error) or "Stopped.", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        from roll.config.leaving import drop_output

        drop_output()
        return ExitCode.FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "roll":
            raise
        return _said(f"This needs the package {error.name}, which is not installed here.", ExitCode.UNABLE)
    except (ValueError, RuntimeError) as error:
        from roll.config.errors import ConfigError, RunError

        if isinstance(error, ConfigError):
            return _said(str(error), ExitCode.INPUT)
        if isinstance(error, RunError):
            return _said(str(error), ExitCode.UNABLE)
        raise


def _said(message: str, code: ExitCode) -> ExitCode:
    from roll.config.plain_text import plain_text

    sys.stderr.write(f"{plain_text(message)}\n")
    return code
