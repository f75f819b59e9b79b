"""Groups of processes, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rank_pool import RankPool


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
