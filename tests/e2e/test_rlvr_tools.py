"""RLVR with a tool: prompts are answered over several turns, the last response is graded, results are not trained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError, load
from roll.pipelines.rlvr import run_rlvr
from roll.schedulers.generation import GenerationScheduler
from roll.trajectories.model import Status
from roll.trajectories.samples import samples_from
from roll.trajectories.store import read_trajectories

PROBLEM = {"prompt": "What is 6 * 7?", "ground_truth": "42", "tag": "math_rule"}


def config(folder: Path, **changes: Any) -> Any:
    data = folder / "problems.jsonl"
    data.write_text(json.dumps(PROBLEM) + "\n")
    return load(
        "rlvr_math",
        output_dir=str(folder / "out"),
        max_steps=1,
        save_steps=1,
        rollout_batch_size=2,
        num_return_sequences_in_group=4,
        overrides={
            "tools": ["calculator"],
            "actor_infer": {"worker_cls": "tests.e2e.calling_engines.CallsACalculator"},
            "actor_train.data_args.file_name": str(data),
            "validation.data_args.file_name": str(data),
            "actor_infer.generating_args.max_new_tokens": 96,
            "sequence_length": 1024,
            "eval_steps": 1,
            **changes,
        },
    )


@pytest.mark.parametrize(
    ("tool", "worker"),
    [pytest.param("calculator", "CallsACalculator", marks=pytest.mark.exhaustive), ("python", "CallsPython")],
)
def test_a_prompt_is_answered_with_a_tool(
    tool: str, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calculator, and a program in the sandbox; the policy that calls them is scripted."""
    released, release = [], GenerationScheduler.release

    async def noted(scheduler: GenerationScheduler, session: str) -> None:
        released.append(session)
        await release(scheduler, session)

    monkeypatch.setattr(GenerationScheduler, "release", noted)
    run_rlvr(config(tmp_path, tools=[tool], actor_infer={"worker_cls": f"tests.e2e.calling_engines.{worker}"}))
    played = read_trajectories(tmp_path / "out" / "trajectories" / "step=000001.parquet")
    assert len(played) == 8
    # Else the scheduler would keep in mind every conversation of a long run.
    assert {f"{answer.group_id}/{answer.episode}" for answer in played} <= set(released)
    for answer in played:
        first, second = answer.turns
        assert answer.status is Status.COMPLETED and answer.messages[-1]["content"].endswith(PROBLEM["prompt"])
        assert tool in answer.messages[0]["content"] or tool in str(first.prompt_ids)
        assert second.messages == [{"role": "tool", "content": "42"}] and second.observation == "42"
        right = answer.episode % 2 == 0
        assert answer.success == right and answer.score == float(right)
        (sample,) = samples_from(answer)
        trained = [t for t, is_trained in zip(sample.token_ids, sample.response_mask, strict=True) if is_trained]
        assert trained == [*first.completion_ids, *second.completion_ids]
    rows = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    step = next(row for row in rows if "rollout/success" in row)
    assert step["rollout/success"] == 0.5 and step["rollout/verifier/tool_calls"] == 1.0
    assert step["rollout/turns"] == 2.0 and step["rollout/retries"] == 0.0
    assert any(row.get("train/grad_norm", 0.0) > 0 for row in rows)


def test_a_tool_that_cannot_be_made_is_told_before_a_model_loads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("unknown tool 'calculatr'. Did you mean 'calculator'")):
        run_rlvr(config(tmp_path, tools=["calculatr"]))
