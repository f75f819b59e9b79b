"""Runs in which sampling goes on while the policy is trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import trained_on
from tests.rings import exhaustive_but

STEPS = 4
AHEAD = {
    "max_steps": STEPS,
    "save_steps": 2,
    "eval_steps": 2,
    "async_generation_ratio": 1.0,
    "old_log_probs": "recompute",
}


def run(kind: str, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Run one of the pipelines; returns the metrics of its steps."""
    if kind == "agentic":
        run_agentic(support.small_config(folder, **{**AHEAD, **changes}))
    else:
        run_rlvr(rlvr_support.small_config(folder, **{**AHEAD, "dynamic_sampling__enable": False, **changes}))
    lines = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "train/loss" in line]


def groups_of(folder: Path) -> list[Counter[str]]:
    return [Counter(t.group_id for t in trained_on(folder, step)) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("kind", exhaustive_but(["agentic", "rlvr"], "rlvr"))
def test_every_group_is_trained_once_and_no_token_is_older_than_the_bound(kind: str, tmp_path: Path) -> None:
    rows = run(kind, tmp_path / "out")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    steps = groups_of(tmp_path / "out")
    assert all(len(step) == 4 and set(step.values()) == {4} for step in steps)
    assert len(set().union(*steps)) == 4 * STEPS
    for number, row in enumerate(rows, 1):
        oldest = min(turn.policy_version[0] for t in trained_on(tmp_path / "out", number) for turn in t.turns)
        assert number - 1 - oldest <= 1
        assert row["rollout/staleness/max"] == number - 1 - oldest
    # Something was sampled ahead: by then the trainer's numbers of the same tokens are others.
    stale = [row for row in rows if row["rollout/staleness/max"] == 1]
    assert stale and all(row["sampler/log_prob_difference_max"] > 1e-4 for row in stale)


def test_stale_samples_are_corrected_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert support.small_config(tmp_path, **AHEAD).correction.mode == "tis"
    assert support.small_config(tmp_path, **AHEAD, sampler_correction__mode="null").correction.mode is None
    assert support.small_config(tmp_path, **{**AHEAD, "async_generation_ratio": 0.0}).correction.mode is None
    # With the sampler's own probabilities in the ratio there is nothing left to correct.
    assert support.small_config(tmp_path, **{**AHEAD, "old_log_probs": "sampler"}).correction.mode is None


@pytest.mark.exhaustive
def test_a_run_that_was_ahead_when_it_ended_goes_on_without_losing_or_repeating_a_level(tmp_path: Path) -> None:
    run("agentic", tmp_path / "out", max_steps=2, eval_steps=0)
    rows = run("agentic", tmp_path / "out", eval_steps=0, resume_from_checkpoint="true")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    trained = sorted(set().union(*groups_of(tmp_path / "out")))
    assert trained == [f"train-{number:07d}" for number in range(4 * STEPS)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "before", "after"), [("rlvr", 0.0, 1.0), ("agentic", 1.0, 0.0)])
def test_a_run_may_go_on_with_another_ratio_and_samples_nothing_twice(
    kind: str, before: float, after: float, tmp_path: Path
) -> None:
    run(kind, tmp_path / "out", max_steps=2, eval_steps=0, async_generation_ratio=before)
    rows = run(kind, tmp_path / "out", eval_steps=0, async_generation_ratio=after, resume_from_checkpoint="true")
    assert len(set().union(*groups_of(tmp_path / "out"))) == 4 * STEPS
    if kind == "rlvr":
        epochs = [row["data/epoch"] for row in rows]
        assert epochs == sorted(epochs) and len(set(epochs[1:])) > 1


@pytest.mark.exhaustive
def test_weights_are_held_back_as_long_as_the_update_frequency_says(tmp_path: Path) -> None:
    held = {"async_generation_ratio": 0.0, "actor_infer__model_update_frequency": 2}
    rows = run("agentic", tmp_path / "out", eval_steps=0, **held)
    versions = [
        {turn.policy_version for t in trained_on(tmp_path / "out", row["step"]) for turn in t.turns} for row in rows
    ]
    assert versions == [{(0, 0)}, {(0, 0)}, {(2, 2)}, {(2, 2)}]
    # The trainer is ahead of what sampled the second and fourth step.
    differences = [row["sampler/log_prob_difference_max"] for row in rows]
    assert max(differences[0], differences[2]) < 1e-4 < min(differences[1], differences[3])
