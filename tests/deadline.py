"""``--minutes N``: begin no test when that many have passed, and say how many were left out.

CI ends a run after a time of its own and then says nothing of any test. On a machine half as fast as others this says
which tests passed and which were not reached. The exhaustive ones are left out when three quarters of the time have
passed, wherever they stand, so that of everything one of each way is tried.
"""

from __future__ import annotations

import time

import pytest

_LEFT_OUT = "left out: the minutes of --minutes are over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=None, help="skip the tests that have not begun by then")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_BEGAN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = 60 * (item.config.getoption("minutes") or float("inf"))
    if item.get_closest_marker("exhaustive"):
        seconds *= 0.75
    if time.monotonic() - item.config.stash[_BEGAN] > seconds:
        pytest.skip(_LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if left_out := sum(_LEFT_OUT in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{left_out} tests were NOT RUN: the minutes of --minutes are over", red=True)


_BEGAN = pytest.StashKey[float]()
