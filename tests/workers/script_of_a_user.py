"""A user's script: what it defines and registers is known in no module. It asks a worker on Ray what it knows of it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import torch

from roll.algorithms.registry import register_advantage, register_loss, registry
from roll.config import AgenticConfig
from roll.config import strategies as config_strategies
from roll.config.strategies import named
from roll.distributed import WorkerSpec, open_cluster
from roll.envs import TextEnv, make, register_env, register_tag
from roll.envs.base import Outcome
from roll.rewards.base import RewardRequest
from roll.rewards.registry import make_verifier, register_verifier
from roll.strategies import StrategyDescription, register_strategy
from roll.workers.setup import Registered, set_up


@register_env("counting")
class Counting(TextEnv):
    """Count on from a number."""

    def __init__(self, first: int = 0, **options: Any) -> None:
        super().__init__(action_pattern=None, **options)
        self.number = first

    def start(self) -> str:
        """Return the first number."""
        return str(self.number)

    def act(self, action: str) -> Outcome:
        """Reward the number that follows."""
        self.number += 1
        return Outcome(str(self.number), {"count": float(action == str(self.number))})


@register_loss("mean_of_ours")
def mean_of_ours(log_probs: Any, old_log_probs: Any, advantages: Any, mask: Any) -> Any:
    """Return the mean."""
    return log_probs.mean(), {}


@register_advantage("doubled")
def doubled(inputs: Any) -> Any:
    """Return twice the input."""
    return inputs * 2


@register_verifier("shouts")
def shouts(request: RewardRequest) -> float:
    """Grade loudness."""
    return float(request.response.isupper())


register_strategy(StrategyDescription(name="echo", engine=lambda job: f"an engine for {job}"))


class Probe:
    """A worker that uses everything by name."""

    def __init__(self, config: AgenticConfig, registered: Registered) -> None:
        set_up(config, registered)

    def use(self) -> dict[str, Any]:
        """Return what came of it."""
        env = make("CountFromSeven")
        observation, _ = env.reset(seed=1)
        _, reward, *_ = env.step("8")
        loss, _ = registry("loss").get("mean_of_ours").function(torch.tensor([1.0, 3.0]), None, None, None)
        return {
            "pid": os.getpid(),
            "observation": observation,
            "reward": reward,
            "loss": loss.item(),
            "advantage": registry("advantage").get("doubled").function(21),
            "score": asyncio.run(_grade()),
            "engine": named(config_strategies.STRATEGIES.get("echo").engine or "")("ours"),
        }


async def _grade() -> Any:
    verifier = make_verifier("shouts", {})
    return (await verifier(RewardRequest(messages=[], response="LOUD"))).score


async def main() -> None:
    """Print what the worker says, and this process."""
    config = AgenticConfig.model_validate(
        {
            "cluster": "ray",
            "train_env_manager": {"env_groups": 1, "group_size": 1},
            "rollout_batch_size": 1,
            "eval_steps": 0,
            "rpc_timeout": 60,
        }
    )
    register_tag("CountFromSeven", env_type="counting", env_config={"first": 7})
    async with open_cluster(config) as cluster:
        group = await cluster.start("actor_infer", WorkerSpec(cls=Probe, args=(config, Registered.here())))
        print("RESULT", json.dumps({"driver": os.getpid(), **await group.one(0, "use")}))


if __name__ == "__main__":
    asyncio.run(main())
