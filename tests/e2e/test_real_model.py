"""Both pipelines train a real instruct model, with every engine that is installed, and with LoRA."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e import rlvr_support, support

sys.path.append(str(support.ROOT / "tests" / "models"))
from smollm2_support import needs_smollm2  # noqa: E402

pytestmark = needs_smollm2

ENGINES = {"vllm": "vllm", "sglang": "sglang"}
"""Engines by the package that they need; the problems below are answered by `hf_infer`."""

SHORT = {
    "pretrain": "smollm2",
    "max_steps": 2,
    "save_steps": 2,
    "eval_steps": 0,
    "progress": "lines",
    "old_log_probs": "recompute",
    "trajectory_dump_steps": 1,
    "max_running_requests": 8,  # vLLM keeps a cache for each: gigabytes for the 512 of the presets
    "actor_infer.generating_args.max_new_tokens": 8,
}
GAMES = {
    **SHORT,
    "train_env_manager.env_groups": 1,
    "train_env_manager.group_size": 2,
    "rollout_batch_size": 2,
    "mini_batches": 1,
    "max_actions_per_traj": 2,
}
PROBLEMS = {
    **SHORT,
    "rollout_batch_size": 2,
    "num_return_sequences_in_group": 2,
    "mini_batches": 1,
    "dynamic_sampling.enable": "false",
    "validation": "null",
    "actor_train.data_args.max_samples": 8,
}


def run(words: list[str], output_dir: Path) -> list[dict[str, Any]]:
    """Run a program to its end; return the metrics of its steps."""
    done = support.start(words, support.ROOT, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (output_dir / "logs" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", ENGINES)
def test_games_are_played_and_learned_from_token_by_token(engine: str, tmp_path: Path) -> None:
    if find_spec(ENGINES[engine]) is None:
        pytest.skip(f"{engine} is not installed")
    changes = {**GAMES, "actor_infer.strategy_args.strategy_name": engine, "output_dir": tmp_path / "out"}
    rows = run(support.command(**changes), tmp_path / "out")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        # The trainer's numbers of the same tokens, in one precision: Hugging Face against the engine.
        assert row["sampler/log_prob_difference_max"] < 1e-3
    tokenizer = load_tokenizer("smollm2")
    renderer = ChatRenderer(tokenizer)
    turns = 0
    for trajectory in read_trajectories(trajectory_path(tmp_path / "out", 2, "train")):
        prompt = renderer.render_ids(trajectory.messages)
        assert trajectory.turns[0].prompt_ids == prompt
        for before, turn in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            assert turn.policy_version == (1, 1)
            if not turn.starts_sample:
                # Cut at the sampled tokens, the text of the bridge ends the turn and begins the next.
                bridge = tokenizer.decode([*before.completion_ids[-1:], *turn.prompt_ids])
                assert "<|im_end|>\n<|im_start|>user\n" in bridge and bridge.endswith("<|im_start|>assistant\n")
            turns += 1
    assert turns
    weights = next((tmp_path / "out").glob("checkpoints/*2/hf"))
    assert load_tokenizer(str(weights)).chat_template == tokenizer.chat_template


@pytest.mark.exhaustive
def test_problems_are_answered_and_learned_from_by_adapters(tmp_path: Path) -> None:
    """One problem, in the precision of the engine: in bf16 some processors take fifty times as long."""
    changes = {**PROBLEMS, "rollout_batch_size": 1, "actor_train.model_args.lora_rank": 4}
    rows = run(rlvr_support.command(**changes, output_dir=tmp_path / "out"), tmp_path / "out")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["sampler/log_prob_difference_max"] < 1e-3 for row in rows)
