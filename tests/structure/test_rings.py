"""A test that starts a process says so, in every ring."""

from __future__ import annotations

from pathlib import Path

import pytest
from inner_pytest import run_pytest

TESTS = """
import subprocess
import threading
import pytest

def test_itself():
    subprocess.run(["true"])

def test_a_thread():
    thread = threading.Thread(target=subprocess.run, args=(["true"],))
    thread.start()
    thread.join()

def test_where_errors_are_caught():
    try:
        subprocess.run(["true"])
    except BaseException:
        pass

def test_an_import():
    import starts

def test_what_is_free():
    subprocess.run(["uname"])

@pytest.mark.processes
def test_one_that_says_so():
    subprocess.run(["true"])
"""


@pytest.mark.processes
@pytest.mark.parametrize(("ring", "kept"), [("quick", 2), ("all", 3)])
def test_a_test_that_starts_a_process_says_so(ring: str, kept: int, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "starts.py").write_text('import subprocess\nsubprocess.run(["true"])\n')
    done = run_pytest("tests.rings", "-q", "--ring", ring, folder=tmp_path)
    failed = [line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["test_itself", "test_a_thread", "test_where_errors_are_caught"], done.stdout
    assert f"3 failed, {kept} passed" in done.stdout
