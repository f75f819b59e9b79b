"""What the tests of stores share."""

from __future__ import annotations

import os
import random
import secrets
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


SEED_VARIABLE = "ROLL_TEST_SEED"


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Draws of this test, others in each run. What fails says which; what programs do beside them is not repeated."""
    seed = os.environ.get(SEED_VARIABLE) or secrets.token_hex(4)
    print(f"drawn with {SEED_VARIABLE}={seed}")  # shown where the test fails
    return random.Random(f"{seed} {request.node.name}")
