"""A run of math problems with a calculator: calls are answered, counted and learned from, their results are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.config import load
from roll.pipelines.agentic import run_agentic
from roll.trajectories.samples import samples_from
from roll.trajectories.store import read_trajectories
from tests.rings import exhaustive_but

CALLS = "tests.e2e.calling_engines.CallsACalculator"


@pytest.mark.parametrize("worker", exhaustive_but([None, CALLS], CALLS))
def test_math_problems_are_solved_with_a_calculator(worker: str | None, tmp_path: Path) -> None:
    config = load(
        "math_tools",
        output_dir=str(tmp_path),
        max_steps=1,
        rollout_batch_size=8,
        val_batch_size=4,
        overrides={
            "actor_infer": {"worker_cls": worker},
            # The worker of this test writes with the tokens of this policy, whose template knows no tools.
            "pretrain": "toy_tools" if worker is None else "toy_math",
            "custom_envs.MathProblem.env_config.file_name": "examples/data/large_arithmetic_train.jsonl",
            "custom_envs.MathProblemHeldOut.env_config.file_name": "examples/data/large_arithmetic_val.jsonl",
            "max_tokens_per_step": 128,
            "train_env_manager": {"env_groups": 2, "group_size": 4},
            "val_env_manager": {"env_groups": 4},
        },
    )
    run_agentic(config)
    (path,) = (tmp_path / "trajectories").glob("step=*1.parquet")
    played = read_trajectories(path)
    metrics = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    calls = [line["rollout/env/tool_calls"] for line in metrics if "rollout/env/tool_calls" in line]
    if worker is None:
        assert 0 < calls[0] < 1, "the toy policy guesses more often"
        return
    assert calls == [1.0]
    for episode in played:
        first, second = episode.turns
        (result,) = second.messages
        assert result["role"] == "tool" and second.observation == result["content"]
        assert episode.success == (episode.episode % 2 == 0)
        (sample,) = samples_from(episode)
        trained = [
            token for token, is_trained in zip(sample.token_ids, sample.response_mask, strict=True) if is_trained
        ]
        assert trained == [*first.completion_ids, *second.completion_ids]
    assert any(line.get("train/grad_norm", 0.0) > 0 for line in metrics), sorted(metrics[-1])
