"""Two steps of training on what an agent program asked the policy, which loses no token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from roll.config import load
from roll.pipelines.agentic import run_agentic
from roll.trajectories.model import Trajectory
from roll.trajectories.samples import samples_from
from roll.trajectories.store import read_trajectories

PLAYER = '''
import asyncio

from roll.envs import make


async def helped(task, client):
    """Play Sokoban, and let two others think about the level meanwhile."""
    helpers = [client.chat(f"{number}: What of level {task.seed}?") for number in range(2)]
    outcome, *_ = await asyncio.gather(alone(task, client), *helpers)
    return outcome


async def alone(task, client):
    env = make("SimpleSokoban")
    observation, _ = env.reset(seed=task.seed)
    said, earned = [{"role": "system", "content": "Solve the Sokoban puzzle."}], 0.0
    for _ in range(10):
        said.append({"role": "user", "content": observation})
        answer = (await client.chat(said))["choices"][0]["message"]
        said.append({"role": "assistant", "content": answer["content"]})
        observation, reward, terminated, truncated, info = env.step(answer["content"])
        earned += reward
        if terminated or truncated:
            break
    return {"reward": earned, "success": info["metrics"]["success"]}
'''


def run(folder: Path, program: str) -> tuple[list[Trajectory], list[dict[str, float]]]:
    config = load(
        "sokoban",
        output_dir=str(folder),
        max_steps=2,
        save_steps=2,
        eval_steps=2,
        rollout_batch_size=16,
        val_batch_size=4,
        adv_estimator="grpo",
        custom_envs={
            "Player": {"env_type": "agent", "env_config": {"program": f"e2e_player:{program}"}, "max_steps": 20}
        },
        train_env_manager={"tags": ["Player"], "env_groups": 4, "group_size": 4},
        val_env_manager={"tags": ["Player"], "env_groups": 4},
    )
    run_agentic(config)
    played = [each for path in sorted((folder / "trajectories").glob("step=*")) for each in read_trajectories(path)]
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    return played, [json.loads(line) for line in lines]


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "e2e_player.py").write_text(PLAYER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_policy_learns_from_the_calls_of_an_agent_and_of_its_helpers(player: Path) -> None:
    played, metrics = run(player / "first", "helped")
    assert {episode.status.value for episode in played} == {"completed"}
    for episode in played:
        assert episode.metrics["branches"] == 3 and episode.metrics["tokens_kept"] == 1.0
        samples = samples_from(episode)
        assert len(samples) == 3 and len({turn.completion_ids[0] for turn in episode.turns}) >= 1
        assert sum(sum(sample.response_mask) for sample in samples) == episode.completion_tokens
        main = max(samples, key=len)
        assert main.last_turn - main.first_turn + 1 == episode.metrics["calls"] - 2
    assert max(line.get("train/grad_norm", 0.0) for line in metrics) > 0
    assert any(line.get("rollout/env/branches") == 3.0 for line in metrics)


@pytest.mark.exhaustive
def test_an_agent_that_makes_one_call_at_a_time_gives_the_same_weights_again(player: Path) -> None:
    runs = [run(player / name, "alone") for name in ("first", "again")]
    first, again = ([(one.score, [turn.completion_ids for turn in one.turns]) for one in played] for played, _ in runs)
    assert first == again
    files = [next((player / name / "checkpoints").glob("step=*2/hf/model.safetensors")) for name in ("first", "again")]
    weights, same = map(load_file, files)
    assert all(weights[name].equal(same[name]) for name in weights)
