"""Both pipelines train with the real vLLM engine, in one process and on Ray."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import trained_on

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")

STEPS = 2
CHANGES = {
    "max_steps": STEPS,
    "save_steps": STEPS,
    "eval_steps": 0,
    "progress": "lines",
    "old_log_probs": "recompute",
    "actor_infer.strategy_args.strategy_name": "vllm",
}
ENGINES = {
    "sokoban": {},
    # Random weights, which the trainer's must replace before anything is sampled.
    "rlvr_math": {"actor_infer.strategy_args.strategy_config": "{load_format: dummy}"},
}
COMMANDS = {"sokoban": support.command, "rlvr_math": rlvr_support.command}


@pytest.mark.parametrize("cluster", ["local", "ray"])
@pytest.mark.parametrize("run", ["sokoban", "rlvr_math"])
def test_the_engine_samples_with_the_weights_of_every_step(run: str, cluster: str, tmp_path: Path) -> None:
    words = COMMANDS[run](**CHANGES, **ENGINES[run], cluster=cluster, output_dir=tmp_path / "out")
    done = support.start(words, support.ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        # The trainer's numbers of the same tokens: with the weights of another step they would be far apart.
        assert row["sampler/log_prob_difference_max"] < 1e-3
    for step in (1, 2):
        versions = {turn.policy_version for t in trained_on(tmp_path / "out", step) for turn in t.turns}
        assert versions == {(step - 1, step - 1)}
