"""What ``--minutes`` leaves out: exhaustive tests first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from inner_pytest import run_pytest

CLOCK = """
import types, pytest
import tests.deadline
now = 0.0
tests.deadline.time = types.SimpleNamespace(monotonic=lambda: now)

def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive: one more")

@pytest.fixture
def at():
    def set_clock(seconds):
        global now
        now = seconds
    return set_clock
"""
TESTS = """
import pytest

def test_first(at): at(50)

@pytest.mark.exhaustive
def test_one_more(): pass

def test_one_of_each(at): at(70)

def test_too_late(): pass
"""


@pytest.mark.processes
def test_exhaustive_tests_are_left_out_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CLOCK)
    (tmp_path / "test_some.py").write_text(TESTS)
    words = ["-v", "--minutes", "1", "-c", os.devnull, f"--rootdir={tmp_path}"]
    done = run_pytest("tests.deadline", *words, folder=tmp_path)
    found = dict(re.findall(r"::(test_\w+) (PASSED|SKIPPED)", done.stdout))
    assert found == {
        "test_first": "PASSED",
        "test_one_more": "SKIPPED",
        "test_one_of_each": "PASSED",
        "test_too_late": "SKIPPED",
    }, done.stdout
    assert "2 tests were NOT RUN" in done.stdout
