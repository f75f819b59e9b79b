"""Megatron-Core on a CUDA device, with layers of PyTorch where Transformer Engine is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "integration"))

pytest.importorskip("megatron.core")

LAYERS = ["pytorch", "transformer_engine"]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "qwen3_moe"])
def test_steps_are_those_of_a_plain_loop(nccl: torch.device, family: str, layers: str) -> None:
    from megatron_support import runs
    from megatron_support.scenarios import Case, train_plain

    from roll.rehearsal.megatron_on_cpu import cpu_layers

    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("needs Transformer Engine")
    if family == "qwen3_moe" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Megatron-Core's router on CUDA devices needs Transformer Engine")
    case = Case(family=family)
    batches = [case.batch(seed) for seed in range(3)]
    expected = train_plain(case, batches)
    with runs.trainer(case, layers=cpu_layers if layers == "pytorch" else None, device=nccl) as strategy:
        steps = runs.take_steps(strategy, case, batches)
        parameters = {name: value.float().cpu().numpy() for name, value in strategy.named_parameters()}
        held = torch.cuda.memory_allocated()
        strategy.offload()
        assert torch.cuda.memory_allocated() < held
        strategy.reload()
        again = {name: value.float().cpu().numpy() for name, value in strategy.named_parameters()}
    for ours, step in zip(steps, expected.steps, strict=True):
        for name in ("loss", "grad_norm"):
            assert ours[name] == pytest.approx(step[name], rel=5e-3, abs=1e-3), name
    for name, values in expected.parameters.items():
        np.testing.assert_allclose(parameters[name], values, rtol=0, atol=5e-3, err_msg=name)
        assert np.array_equal(parameters[name], again[name]), name
