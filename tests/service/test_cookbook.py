"""A recipe of tinker-cookbook, as PyPI has it, trains adapters of a toy policy: on this machine, by our service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from training_server import KEY, base, serving

from roll.models.loading import resolve_pretrain
from roll.service.clients import Clients

PEERS = Path(sys.prefix) / "peers"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.processes,
    pytest.mark.skipif(
        not (PEERS / "tinker_cookbook").exists() and "CI" not in os.environ,
        reason="pip install --no-deps --target .venv/peers -r tests/service/cookbook.txt",
    ),
]


def test_its_recipe_of_arithmetic_runs_as_it_is(tmp_path: Path) -> None:
    model = resolve_pretrain("toy_math")  # its tokenizer is read from there
    changes = {
        "model_name": model,
        "renderer_name": "role_colon",  # a format for models that the cookbook does not know
        "env": "arithmetic",
        "loss_fn": "importance_sampling",
        "lora_rank": 8,
        "learning_rate": 1e-3,
        "group_size": 4,
        "groups_per_batch": 8,
        "max_tokens": 8,
        "max_steps": 3,
        "eval_every": 0,
        "save_every": 2,
        "log_path": tmp_path / "log",
    }
    with serving(Clients(replace(base(), name=model), tmp_path / "weights")) as address:
        done = subprocess.run(
            [sys.executable, "-m", "tinker_cookbook.recipes.math_rl.train", *(f"{k}={v}" for k, v in changes.items())],
            env={**os.environ, "PYTHONPATH": str(PEERS), "TINKER_BASE_URL": address, "TINKER_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    *steps, _ = [json.loads(line) for line in (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()]
    assert [step["progress/batch"] for step in steps] == [0, 1, 2]
    assert all(step["optim/kl_sample_train_v2"] < 1e-8 for step in steps), "the trainer's log-probs are the sampler's"
    saved = [json.loads(line) for line in (tmp_path / "log" / "checkpoints.jsonl").read_text().splitlines()]
    assert saved and all(place["state_path"].startswith("tinker://") for place in saved)
