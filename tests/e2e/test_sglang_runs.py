"""Both pipelines train with the real SGLang engine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.engine_runs import COMMANDS, assert_samples_with_the_weights_of_every_step

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed: make test-sglang"),
]


@pytest.mark.parametrize("run", COMMANDS)
def test_the_engine_samples_with_the_weights_of_every_step(run: str, tmp_path: Path) -> None:
    assert_samples_with_the_weights_of_every_step("sglang", run, "local", tmp_path / "out")
