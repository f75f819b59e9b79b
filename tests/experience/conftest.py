"""What the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import Server, postgres
from ray_session import Session, ray_session


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A real server of PostgreSQL."""
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A real session of Ray; other files of this process are to find none."""
    with ray_session() as running:
        yield running
