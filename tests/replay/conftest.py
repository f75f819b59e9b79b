"""Finished runs whose episodes are played again: three environments, one that awaits among them, and prompts."""

from __future__ import annotations

import asyncio

import pytest

from roll.envs import TAGS as KNOWN_TAGS
from roll.envs import AsyncTextEnv, Outcome, register_env
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from roll.runs.stored import StoredRun
from tests.e2e import rlvr_support, support

TAGS = ["SimpleSokoban", "FrozenLake", "replayed_guess"]


@register_env("replayed_guess")
class Guess(AsyncTextEnv):
    """Guess a direction."""

    def __init__(self) -> None:
        super().__init__(actions=["Up", "Down", "Left"], worst_reward=-0.1, format_penalty=-0.2)

    async def start(self) -> str:
        await asyncio.sleep(0)
        self.secret = ("Up", "Down", "Left")[int(self.np_random.integers(3))]
        return f"Guess {self.np_random.integers(100)}."

    async def act(self, action: str) -> Outcome:
        await asyncio.sleep(0)
        right = action == self.secret
        return Outcome(f"{action}?", {"found": 1.0} if right else {"step": -0.1}, terminated=right, success=right)


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    folder = tmp_path_factory.mktemp("games") / "run"
    changes = {"max_steps": 2, "save_steps": 1, "eval_steps": 2, "rollout_batch_size": 12, "val_batch_size": 3}
    tags = f"[{','.join(TAGS)}]"
    sections = {
        "train_env_manager__tags": tags,
        "train_env_manager__env_groups": 6,
        "train_env_manager__group_size": 2,
        "val_env_manager__tags": tags,
        "val_env_manager__env_groups": 3,
        "val_env_manager__group_size": 1,
        "sequence_length": 1024,
    }
    with KNOWN_TAGS.restored():
        run_agentic(support.small_config(folder, **changes, **sections))
    return StoredRun.open(folder)


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    folder = tmp_path_factory.mktemp("answers") / "run"
    run_rlvr(rlvr_support.small_config(folder, max_steps=2, save_steps=1, eval_steps=2, dynamic_sampling__enable=False))
    return StoredRun.open(folder)
