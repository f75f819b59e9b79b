"""Groups of processes and engines, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from engine_kinds import KINDS, one_of
from engines import EngineUnderTest
from rank_pool import RankPool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run last what ends the engines that tests share."""
    items.sort(key=lambda item: item.path.name == "test_engine_contract_end.py")


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineUnderTest]:
    """An engine of each kind, with the weights that it had at first."""
    yield from one_of(request, monkeypatch)


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], RankPool]]:
    started: dict[int, RankPool] = {}

    def pool(size: int) -> RankPool:
        if size not in started or started[size].closed:
            started[size] = RankPool(size)
        return started[size]

    yield pool
    for one in started.values():
        one.close()


@pytest.fixture
def two(pools: Callable[[int], RankPool]) -> RankPool:
    """Two ranks."""
    return pools(2)


@pytest.fixture
def four(pools: Callable[[int], RankPool]) -> RankPool:
    """Four ranks."""
    return pools(4)
