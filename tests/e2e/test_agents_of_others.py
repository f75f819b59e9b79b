"""Agents that others wrote, as PyPI has them, in runs of a few steps; and what they make of a policy that can do it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from roll.config import load
from roll.pipelines.agentic import run_agentic
from roll.sandbox import capabilities
from roll.trajectories.store import read_trajectories
from tests.e2e.support import ROOT
from tests.warm_others import python_of

AGENTS = ROOT / ".venv" / "agents"
EXAMPLES = ROOT / "examples" / "agents"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not AGENTS.exists() and "CI" not in os.environ, reason="make agents"),
]


@pytest.mark.parametrize("name", ["openai_sokoban", "pydantic_ai_sums", "smolagents_sums", "mini_swe"])
def test_a_few_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "mini_swe" and capabilities().network != "namespace":
        pytest.skip("this machine allows no namespaces")
    monkeypatch.chdir(ROOT)
    # Each of its episodes is a program that imports for as long as all else takes, and that is shut in: it cannot be
    # forked from a warm one. A second step, the others show.
    steps = 1 if name == "mini_swe" else 2
    few: dict[str, Any] = {"rollout_batch_size": 2, "mini_batches": 1}
    tag = {"pydantic_ai_sums": "Sums with Pydantic AI", "smolagents_sums": "Sums with smolagents"}.get(name)
    program = [str(python_of("agents")), str(EXAMPLES / f"{name}.py")] if tag else []
    config = load(
        str(EXAMPLES / f"{name}.yaml"),
        **few,
        **({"pretrain": "toy"} if name == "mini_swe" else {}),
        max_steps=steps,
        save_steps=0,
        eval_steps=0,
        output_dir=str(tmp_path),
        overrides={
            "train_env_manager.env_groups": 1,
            "train_env_manager.group_size": 2,
            **({f"custom_envs.{tag}.env_config.command": program} if tag else {}),
        },
    )
    run_agentic(config)
    episodes = [each for path in (tmp_path / "trajectories").glob("step=*") for each in read_trajectories(path)]
    assert len(episodes) == 2 * steps
    for episode in episodes:
        assert not episode.status.is_error and episode.score is not None, episode.error
        assert episode.metrics["calls"] >= 1 and all(turn.completion_ids for turn in episode.turns)
    lines = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/errors"] for line in lines if "rollout/errors" in line] in ([], [0.0] * steps)
