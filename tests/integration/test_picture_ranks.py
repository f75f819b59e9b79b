"""Ranks that share a model that sees take the step of one process, also where some rows have no pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from picture_scenarios import step
from rank_pool import RankPool

from tests.models.tiny_vision import make_tiny_vision
from tests.rings import exhaustive_but


@pytest.mark.parametrize("shares", exhaustive_but([(2, 2), (4, 0), (1, 3)], (4, 0)))
def test_ranks_take_the_step_of_one_process(two: RankPool, tmp_path: Path, shares: tuple[int, int]) -> None:
    folder = str(make_tiny_vision(tmp_path / "vision"))
    loss, parameters, scored = step(folder, shares)
    found = two.run(step, folder, shares)
    np.testing.assert_allclose(np.concatenate([rank[2] for rank in found]), scored, atol=1e-5)
    for rank in found:
        assert rank[0] == pytest.approx(loss, rel=1e-6)
        for name, value in parameters.items():
            np.testing.assert_allclose(rank[1][name], value, atol=1e-5, err_msg=name)
