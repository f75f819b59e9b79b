"""DeepSpeed on a CUDA device takes the steps of a plain loop on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("deepspeed")
from tests.integration.deepspeed_support import ZeroCase, outcome, plain_run, preset, take_steps

SETTINGS: dict[str, dict[str, Any]] = {
    "zero 0": preset("deepspeed_zero"),
    "zero 2": preset("deepspeed_zero2"),
    "zero 3": preset("deepspeed_zero3"),
    "zero 3 offload": preset("deepspeed_zero3_cpuoffload"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_are_those_of_a_plain_loop(nccl: torch.device, setting: str, packed: bool) -> None:
    case = ZeroCase(config=SETTINGS[setting], shares=(8,), train={"use_sequence_packing": packed})
    batches = [case.batch(seed) for seed in range(4)]
    expected = plain_run(case, batches)
    trainer = case.trainer()
    found = outcome(trainer, case, take_steps(trainer, case, batches))
    trainer.close()
    for ours, step in zip(found.steps, expected.steps, strict=True):
        for name in ("loss", "grad_norm"):
            assert ours[name] == pytest.approx(step[name], rel=2e-3, abs=1e-4), name
    for name, values in expected.parameters.items():
        np.testing.assert_allclose(found.parameters[name], values, rtol=0, atol=1e-3, err_msg=name)


def test_what_is_handed_over_leaves_the_device(nccl: torch.device) -> None:
    case = ZeroCase(config=preset("deepspeed_zero2"), shares=(8,))
    trainer = case.trainer()
    take_steps(trainer, case, [case.batch(1)])
    before, held = outcome(trainer, case, []), torch.cuda.memory_allocated()
    trainer.offload()
    own = sum(values.nbytes for values in before.parameters.values())
    assert held - torch.cuda.memory_allocated() > 3.5 * own, "weights, gradients and both moments"
    trainer.reload()
    after = outcome(trainer, case, [])
    assert all(np.array_equal(values, after.parameters[name]) for name, values in before.parameters.items())
    take_steps(trainer, case, [case.batch(2)])
    trainer.close()
