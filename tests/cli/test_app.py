"""The program itself: its table of commands, its help, and how it starts."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from roll.cli.app import COMMANDS, main

HEAVY = ("torch", "ray", "transformers", "pyarrow", "pandas", "hydra", "omegaconf", "numpy", "roll.config")


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(argv)
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_help_names_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["--help"], capsys)
    assert code == 0 and all(f"\n  {name} " in out for name in COMMANDS)
    assert not cut_off(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said([name, "--help"], capsys)
    assert code == 0 and out.startswith(f"Usage: roll {name}")
    assert f"roll {name} " in out.partition("Examples:")[2], "epilog=examples(...) of roll.cli.examples"
    assert not cut_off(out), "give these commands a short_help"


def cut_off(shown: str) -> list[str]:
    """Return the lines of a list of commands that did not fit."""
    return [line for line in shown.partition("\nCommands:")[2].splitlines() if line.endswith("...")]


def test_every_command_is_a_file_of_its_own() -> None:
    modules = [target.partition(":")[0] for target, _ in COMMANDS.values()]
    assert len(set(modules)) == len(modules) and all(find_spec(module) is not None for module in modules)


def test_a_command_that_there_is_not_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["nosuch"], capsys)
    assert (code, out) == (2, "") and "No such command 'nosuch'" in err


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import roll

    assert said(["--version"], capsys)[:2] == (0, f"roll {roll.__version__}\n")


@pytest.mark.processes
def test_help_imports_nothing_heavy_and_takes_little_processor_time() -> None:
    names = [name for name in HEAVY]
    program = f"""
import resource, sys
from roll.cli.app import main
try:
    main(["--help"])
except SystemExit as left:
    assert left.code == 0
loaded = [name for name in {names!r} if name in sys.modules]
assert not loaded, loaded
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stderr) < 0.3
