"""Groups of processes and engines, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_kinds import KINDS, one_of
from engines import EngineUnderTest
from rank_pool import RankPool, shared


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run last what ends the engines that tests share."""
    items.sort(key=lambda item: item.path.name == "test_engine_contract_end.py")


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineUnderTest]:
    """An engine of each kind, with the weights that it had at first."""
    yield from one_of(request, monkeypatch)


@pytest.fixture
def two() -> RankPool:
    """Two ranks."""
    return shared(RankPool, 2)


@pytest.fixture
def four() -> RankPool:
    """Four ranks."""
    return shared(RankPool, 4)
