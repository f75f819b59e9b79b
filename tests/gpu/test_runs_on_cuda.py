"""Whole runs on a CUDA device."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch.cuda._memory_viz import trace_plot

from roll.pipelines.agentic import run_agentic
from tests.e2e.ray_support import AGENTIC, furthest, tokens, trained_on
from tests.e2e.support import small_config

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("strategy", ["fsdp_train", "deepspeed_train"])
def test_a_run_is_the_same_twice(cuda: torch.device, tmp_path: Path, strategy: str) -> None:
    if strategy == "deepspeed_train":
        pytest.importorskip("deepspeed")
    for name in ("one", "two"):
        changes = {**AGENTIC, "actor_train.strategy_args.strategy_name": strategy}
        run_agentic(small_config(tmp_path / name, **changes))
    for step in (1, 2, 3):
        assert tokens(trained_on(tmp_path / "one", step)) == tokens(trained_on(tmp_path / "two", step)), f"step {step}"
    # Sums on a GPU are added up in any order.
    assert furthest(*(tmp_path / name / "checkpoints/step=000003/hf" for name in ("one", "two"))) < 1e-5


def test_trainer_and_engine_share_a_gpu_in_processes_of_their_own(cuda: torch.device, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    changes = {
        **AGENTIC,
        "cluster": "ray",
        "num_gpus_per_node": 1,
        "actor_train.device_mapping": "[0]",
        "actor_infer.device_mapping": "[0]",
    }
    run_agentic(small_config(tmp_path / "ray", **changes))
    run_agentic(small_config(tmp_path / "local", **AGENTIC))
    for step in (1, 2):
        assert tokens(trained_on(tmp_path / "ray", step)) == tokens(trained_on(tmp_path / "local", step))
    assert furthest(*(tmp_path / name / "checkpoints/step=000003/hf" for name in ("ray", "local"))) < 1e-3


def test_a_profiled_step_leaves_kernels_and_a_snapshot_of_the_memory(cuda: torch.device, tmp_path: Path) -> None:
    profile = "{steps: [2], roles: [actor_train], memory: true}"
    run_agentic(small_config(tmp_path / "out", **{**AGENTIC, "max_steps": 2}, profile=profile))
    folder = tmp_path / "out" / "profile" / "step=000002"
    assert sorted(path.name for path in folder.iterdir()) == ["actor_train-0.json", "actor_train-0.memory.pickle"]
    events = json.loads((folder / "actor_train-0.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    snapshot = pickle.loads((folder / "actor_train-0.memory.pickle").read_bytes())
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) > 100_000, "the weights at least"
    history = [entry for device in snapshot["device_traces"] for entry in device]
    assert {"alloc", "free_completed"} <= {entry["action"] for entry in history}
    assert "Active Memory Timeline" in trace_plot(snapshot), "what draws it can read it"
