"""What the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import Server, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A real server of PostgreSQL."""
    with postgres() as running:
        yield running
