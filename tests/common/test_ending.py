"""A program ends as any other does, but for the search for garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit
class Loop:
    def __init__(self): self.own = self
    def __del__(self): print("collected", flush=True)
{first}
kept = Loop()
atexit.register(print, "at exit", flush=True)
raise SystemExit(3)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "at exit\ncollected\n"),
        ("from roll.common.ending import end_quickly; end_quickly(); end_quickly()", "at exit\n"),
    ],
    ids=["any", "quick"],
)
def test_what_is_to_be_done_at_the_end_is_done_and_nothing_is_searched(first: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


@pytest.mark.processes
def test_nothing_complains_about_what_is_left() -> None:
    first = "from roll.common.ending import end_quickly; end_quickly()"
    words = [sys.executable, "-c", f"{first}; import duckdb; duckdb.sql('select 1').fetchall()"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
