"""The example of an estimator and a loss of one's own: right, covered by the required properties, and trained with."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from roll.algorithms import advantages, losses
from roll.algorithms.registry import ADVANTAGES, LOSSES
from tests import programs

from . import test_properties as properties

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_algorithm.py"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("custom_algorithm", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    ADVANTAGES.remove("rank")
    LOSSES.remove("leashed")


@pytest.mark.usefixtures("example")
def test_the_estimator_counts_wins_in_the_group() -> None:
    scores = torch.tensor([5.0, 1.0, 100.0, 1.0, 7.0, 1.0])
    inputs = advantages.AdvantageInputs(torch.ones(6, 1), scores=scores, group_ids=["a", "a", "a", "a", "b", "b"])
    result = advantages.compute("rank", inputs, {"spread": 2.0}).advantages[:, 0]
    assert result.tolist() == [2 * (2 - 1) / 4, 2 * -2 / 4, 2 * 3 / 4, 2 * -2 / 4, 2 * 1 / 2, 2 * -1 / 2]


@pytest.mark.usefixtures("example")
def test_the_loss_is_a_ratio_on_a_leash() -> None:
    log_probs, old = torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[-1.5, -1.0, -9.0]])
    mask = torch.tensor([[True, True, False]])
    loss, metrics = losses.compute("leashed", log_probs, old, torch.full((1, 3), 2.0), mask, {"strength": 0.1})
    expected = [-2 * math.exp(d) + 0.1 * d * d for d in (0.5, -1.0)]
    assert loss[0].tolist() == pytest.approx([*expected, 0.0])
    assert float(metrics["distance"]) == pytest.approx((0.25 + 1.0) / 2)


@pytest.mark.long
@pytest.mark.usefixtures("example")
@pytest.mark.filterwarnings("ignore::roll.algorithms.groups.AlgorithmWarning")
def test_both_have_the_required_properties() -> None:
    properties.test_estimators_ignore_what_the_mask_hides("rank")
    properties.test_estimators_do_not_depend_on_the_order_of_samples("rank")
    properties.test_losses_ignore_what_the_mask_hides("leashed")
    properties.test_the_gradient_does_not_depend_on_micro_batches("leashed", "token-mean")
    for case in ("plain", "empty rows", "one token", "infinite outside"):
        properties.assert_loss_is_finite("leashed", case, 1e3)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.processes
def test_the_example_is_read_without_torch() -> None:
    code = "import sys, custom_algorithm; assert 'torch' not in sys.modules"
    folder = EXAMPLE.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.processes
def test_running_the_example_trains_with_both(tmp_path: Path) -> None:
    small = {
        "train_env_manager.env_groups": 2,
        "train_env_manager.group_size": 4,
        "rollout_batch_size": 8,
        "mini_batches": 2,
        "max_steps": 1,
        "eval_steps": 0,
        "output_dir": "out",
    }
    words = [sys.executable, str(EXAMPLE), *(f"{key}={value}" for key, value in small.items())]
    done = programs.run(words, tmp_path, environment(), timeout=240)
    assert done.returncode == 0, done.stderr
    assert "rank" in done.stdout and "no effect" not in done.stdout
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert row["train/policy/distance"] >= 0.0 and row["advantages/max"] <= 1.0
