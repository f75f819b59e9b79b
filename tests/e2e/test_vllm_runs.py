"""Both pipelines train with the real vLLM engine, in one process and on Ray."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.engine_runs import assert_samples_with_the_weights_of_every_step

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")


# Each pipeline and each cluster once: what makes the engine of a run knows neither of the other.
def test_the_engine_samples_with_the_weights_of_every_step(tmp_path: Path) -> None:
    assert_samples_with_the_weights_of_every_step("vllm", "sokoban", "local", tmp_path / "out")


@pytest.mark.exhaustive
def test_an_engine_on_ray_samples_with_the_weights_of_every_step(ray_machine: dict[str, str], tmp_path: Path) -> None:
    assert_samples_with_the_weights_of_every_step("vllm", "rlvr_math", "ray", tmp_path / "out", **ray_machine)
