"""Both pipelines train with the real vLLM engine, in one process and on Ray."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.engine_runs import assert_samples_with_the_weights_of_every_step

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")


@pytest.mark.parametrize(
    ("run", "cluster"),
    [
        ("sokoban", "local"),
        pytest.param("rlvr_math", "ray", marks=pytest.mark.exhaustive),
        pytest.param("rlvr_math", "local", marks=pytest.mark.exhaustive),
        pytest.param("sokoban", "ray", marks=pytest.mark.exhaustive),
    ],
)
def test_the_engine_samples_with_the_weights_of_every_step(run: str, cluster: str, tmp_path: Path) -> None:
    assert_samples_with_the_weights_of_every_step("vllm", run, cluster, tmp_path / "out")
