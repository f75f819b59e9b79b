"""The groups of test files that share something name files that are there, none in two; with each, that ends."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
from inner_pytest import run_pytest

from tests.rings import exhaustive_but
from tests.sharing import GROUPS, group_of

ROOT = Path(__file__).resolve().parents[2]
FILES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("tests/**/test_*.py"))]


@pytest.mark.parametrize("pattern", [pattern for patterns in GROUPS.values() for pattern in patterns])
def test_a_pattern_names_files(pattern: str) -> None:
    assert any(fnmatch(file, pattern) for file in FILES)


def test_a_file_is_in_the_first_group_that_names_it_or_is_one_by_itself() -> None:
    for file in FILES:
        named = [name for name, patterns in GROUPS.items() if any(fnmatch(file, pattern) for pattern in patterns)]
        assert group_of(file) == [*named, file][0]
    assert {group_of(file) for file in FILES} >= set(GROUPS)


def test_the_cases_that_are_not_kept_are_exhaustive_and_a_wrong_name_is_an_error() -> None:
    first, second = exhaustive_but(["a", "b"], "b")
    assert second == "b" and first.values == ("a",) and [mark.name for mark in first.marks] == ["exhaustive"]
    with pytest.raises(AssertionError, match="not all among"):
        exhaustive_but(["a", "b"], "c")


SHARE = """
from contextlib import contextmanager
from tests.sharing import shared_by_group

@contextmanager
def thing():
    print("<begins>")
    yield "it"
    print("<ends>")

def test_one():
    assert shared_by_group(thing) == "it"
    print("<one>")

def test_two():
    assert shared_by_group(thing) == "it"
    print("<two>")
"""


@pytest.mark.processes
def test_what_a_group_shares_ends_behind_its_last_test(tmp_path: Path) -> None:
    (tmp_path / "things.py").write_text(SHARE)
    for name in ("test_first.py", "test_second.py"):
        (tmp_path / name).write_text("from things import test_one, test_two\n")
    done = run_pytest("tests.sharing", "-q", "-s", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    said = [word.split(">")[0] for word in done.stdout.split("<")[1:]]
    assert said == 2 * ["begins", "one", "two", "ends"]


@pytest.mark.processes
def test_behind_a_process_that_dies_another_runs_what_is_left(tmp_path: Path) -> None:
    """As where Ray ends the process, or memory is at its end: one test has failed, and is not tried again meanwhile."""
    for place in range(4):
        (tmp_path / f"test_{place}.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    (tmp_path / "test_last.py").write_text("import os\ndef test_a(): os._exit(1)\ndef test_b(): pass\n")
    done = run_pytest("tests.sharing", "-q", "-n", "2", "--dist", "loadfile", folder=tmp_path)
    assert "1 failed, 9 passed" in done.stdout, done.stdout
    assert "crashed while running 'test_last.py::test_a'" in done.stdout
