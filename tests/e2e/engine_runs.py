"""Runs with an engine of another package, and the check that it samples with the weights of every step."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import trained_on

STEPS = 2
CHANGES = {
    "max_steps": STEPS,
    "save_steps": STEPS,
    "eval_steps": 0,
    "progress": "lines",
    "old_log_probs": "recompute",
}
OPTIONS = {
    "sokoban": {},
    # Random weights, which the trainer's must replace before anything is sampled.
    "rlvr_math": {"actor_infer.strategy_args.strategy_config": "{load_format: dummy}"},
}
COMMANDS = {"sokoban": support.command, "rlvr_math": rlvr_support.command}


def assert_samples_with_the_weights_of_every_step(
    engine: str, run: str, cluster: str, folder: Path, **variables: str
) -> None:
    """Start a run of two steps, and compare what the engine said of its tokens with what the trainer says."""
    changes = {**CHANGES, **OPTIONS[run], "actor_infer.strategy_args.strategy_name": engine}
    words = COMMANDS[run](**changes, cluster=cluster, output_dir=folder)
    done = support.start(words, support.ROOT, timeout=540, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        # The trainer's numbers of the same tokens: with the weights of another step they would be far apart.
        assert row["sampler/log_prob_difference_max"] < 1e-3
    for step in (1, 2):
        versions = {turn.policy_version for t in trained_on(folder, step) for turn in t.turns}
        assert versions == {(step - 1, step - 1)}
