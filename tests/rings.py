"""Tests in three rings: which tests each has, and the check that a test says so when it starts a process.

``make quick`` runs what needs no process but its own, ``make test`` one of each kind of what does, ``make test-all``
everything. A plain ``pytest tests/…`` runs all of what it is given; ``--ring`` chooses.
"""

from __future__ import annotations

import multiprocessing.process
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

NOT_IN: dict[str, set[str]] = {"quick": {"processes", "long", "exhaustive"}, "test": {"exhaustive"}, "all": set()}
"""The rings, and the marks of the tests that each leaves out."""

IN_PROCESSES = ("benchmarks", "e2e", "fresh_machine", "gpu", "integration", "terminal")
"""Folders whose every test is marked ``processes``: whole runs, and parts that need ranks or an engine."""

# They end within milliseconds; a run asks them for its commit and its machine.
_FREE = {"git", "uname", "ldconfig", "lscpu", "gcc", "cc", "file"}
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
_HERE = Path(__file__).resolve().parent
_MARKED_WHOLE = re.compile(rf"^pytestmark = pytest\.mark\.({'|'.join(NOT_IN['quick'])})\b", re.MULTILINE)


def exhaustive_but(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases as parameters of a test, of which ``make test`` has only those that are kept."""
    listed = list(cases)
    assert all(case in listed for case in kept), f"{kept} are not all among {listed}"
    return [case if case in kept else pytest.param(case, marks=pytest.mark.exhaustive) for case in listed]


_watched: list[str] | None = None
"""What the test that runs now started and should not have; ``None`` while it may start what it likes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ring", choices=tuple(NOT_IN), default="all", help="quick: no processes; test: one of each; all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders and files that the quick ring needs nothing of: to import them takes as long as many tests."""
    if config.getoption("ring") != "quick":
        return None
    if collection_path.suffix == ".py":
        return True if _MARKED_WHOLE.search(collection_path.read_text()) else None
    return True if collection_path.parent == _HERE and collection_path.name in IN_PROCESSES else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_processes = tuple(f"{_HERE / folder}{os.sep}" for folder in IN_PROCESSES)
    for item in items:
        if str(item.path).startswith(in_processes):
            item.add_marker(pytest.mark.processes)
    unwanted = NOT_IN[config.getoption("ring")]
    left_out = [item for item in items if unwanted & {mark.name for mark in item.iter_markers()}]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _watch(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _watch(item))


def _watch(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process and does not say so: else the quick ring would become slow.

    So it does in every ring, or nobody would notice who runs another one.
    """
    global _watched
    _watched = None if NOT_IN["quick"] & {mark.name for mark in item.iter_markers()} else []
    try:
        result = yield
        if _watched:  # in a thread, or where the code under test catches everything
            pytest.fail(_sentence(_watched[0]), pytrace=False)
        return result
    finally:
        _watched = None


def _sentence(what: str) -> str:
    return (
        f"this test starts a process ({what}) and would run in `make quick`, which has none. Mark it with "
        "@pytest.mark.processes (or its file with `pytestmark`), or use what does the same in this process."
    )


def _refuse(what: str) -> None:
    if _watched is not None:
        _watched.append(what)
        pytest.fail(_sentence(what))


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in _STARTS:
        what = str(arguments[0]) if arguments else event
        if Path(what).name not in _FREE and not _imports():
            _refuse(what)


def _imports() -> bool:
    """Whether a module is being imported: what it starts then depends on the tests before, which may have done so."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _start(self: multiprocessing.process.BaseProcess) -> None:
    _refuse(f"multiprocessing: {self.name}")
    _start_process(self)


sys.addaudithook(_listen)
_start_process = multiprocessing.process.BaseProcess.start  # spawned without an audit event
multiprocessing.process.BaseProcess.start = _start  # type: ignore[method-assign]
