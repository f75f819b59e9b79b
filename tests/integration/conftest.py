"""Groups of processes and engines, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_kinds import KINDS, one_of
from engines import EngineUnderTest
from rank_pool import RankPool

from tests.sharing import shared_by_group


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run last what ends the engines that tests share."""
    items.sort(key=lambda item: item.path.name == "test_engine_contract_end.py")


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineUnderTest]:
    """An engine of each kind, with the weights that it had at first."""
    yield from one_of(request, monkeypatch)


@contextmanager
def _pools() -> Iterator[dict[int, RankPool]]:
    started: dict[int, RankPool] = {}
    yield started
    for one in started.values():
        one.close()


def _ranks(size: int) -> RankPool:
    started = shared_by_group(_pools)
    if size not in started or started[size].closed:
        started[size] = RankPool(size)
    return started[size]


@pytest.fixture
def two() -> RankPool:
    """Two ranks."""
    return _ranks(2)


@pytest.fixture
def four() -> RankPool:
    """Four ranks."""
    return _ranks(4)
