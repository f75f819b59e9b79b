"""The load test of the gateway, with a few agents: it runs, and no call of theirs is lost."""

from __future__ import annotations

import pytest

from benchmarks.gateway_load import Load, measure


@pytest.mark.exhaustive
def test_agents_over_http_are_recorded_as_those_in_the_process() -> None:
    measured = measure(Load(agents=16, calls=3, seconds=0.2, spread=0.0))
    assert measured["in process"] >= 0.6 and measured["over HTTP"] >= 0.6
