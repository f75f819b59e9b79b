"""The learner alone, on a toy policy of this process: against a loop that was written from the formulas."""

from __future__ import annotations

import asyncio
import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.config import AgenticConfig
from roll.distributed.cluster import LocalCluster
from roll.distributed.placement import plan_placement
from roll.pipelines.learning.batches import mini_batches
from roll.pipelines.learning.learner import Learner
from roll.pipelines.roles.core import Core, build_core
from roll.schedulers.groups import RolloutError
from roll.tracking.progress import NullProgress
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn
from roll.workers.loading import load_text
from tests.e2e.support import small_config

CLIP, RATE = 0.2, 1e-3


def config_of(folder: Path, **changes: Any) -> AgenticConfig:
    plain = {
        "adv_estimator": "reinforce",
        "reward_normalization.method": "identity",
        "mini_batches": 1,
        "actor_train.training_args.learning_rate": RATE,
        "pg_clip": CLIP,
    }
    return small_config(folder, **{**plain, **changes})


async def core_of(config: AgenticConfig) -> Core:
    cluster = LocalCluster(plan_placement(config), config.rpc_timeout)
    return await build_core(config, load_text(config), cluster)


def group(number: int, scores: list[float | None]) -> TrajectoryGroup:
    """Attempts of one turn each, of unequal length; ``None`` for one that broke."""
    draw = np.random.default_rng(number)
    members = []
    for episode, score in enumerate(scores):
        answer = [int(token) for token in draw.integers(5, 60, 2 + episode)]
        said = [float(value) for value in -draw.uniform(2.0, 6.0, len(answer))]
        prompt = [int(token) for token in draw.integers(5, 60, 4 + number)]
        turn = Turn(prompt, answer, said, reward=score or 0.0, reward_parts={"env": score or 0.0})
        status = Status.ERROR_ENV if score is None else Status.COMPLETED
        error = "the box vanished" if score is None else None
        members.append(Trajectory("Game", f"train-{number}", episode, number, "", [turn], status, score, error))
    return TrajectoryGroup(f"train-{number}", "Game", members)


def expected_gradient(model: torch.nn.Module, groups: list[TrajectoryGroup]) -> tuple[float, dict[str, torch.Tensor]]:
    """PPO's clipped loss, token by token: the mean over all sampled tokens, each with its episode's score."""
    losses = []
    for trajectory in (member for each in groups for member in each.trajectories if member.score is not None):
        (turn,) = trajectory.turns
        tokens = torch.tensor([turn.prompt_ids + turn.completion_ids])
        logits = model(input_ids=tokens).logits[0].double()
        for place, (token, old) in enumerate(zip(turn.completion_ids, turn.logprobs, strict=True)):
            row = logits[len(turn.prompt_ids) + place - 1]
            ratio = torch.exp(row[token] - torch.logsumexp(row, 0) - old)
            clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
            losses.append(torch.maximum(-trajectory.score * ratio, -trajectory.score * clipped))
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@torch.no_grad()
def expected_entropies(model: torch.nn.Module, trajectory: Trajectory, width: int) -> list[float]:
    """Entropies of the distributions that sampled tokens were drawn from, in nats; not a number elsewhere."""
    (turn,) = trajectory.turns
    tokens = torch.tensor([turn.prompt_ids + turn.completion_ids])
    found = torch.distributions.Categorical(logits=model(input_ids=tokens).logits[0].double()).entropy().tolist()
    first, last = len(turn.prompt_ids), tokens.shape[1]
    return [found[place - 1] if first <= place < last else math.nan for place in range(width)]


def test_a_step_is_the_gradient_of_a_loop_over_tokens(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    groups = [group(0, [1.0, -0.5, 0.25]), group(1, [-1.0, None, 2.0])]

    async def learn() -> tuple[torch.nn.Module, torch.nn.Module, dict[str, float], torch.Tensor]:
        core = await core_of(config)
        model = core.trainer.group.worker(0).model  # type: ignore[attr-defined]
        before = copy.deepcopy(model)
        learner = Learner(config, core, NullProgress())
        batch = learner.make_batch(groups)
        assert len(batch.samples) == 5 and batch.scores == [1.0, -0.5, 0.25, -1.0, 2.0] and batch.baselines is None
        metrics = await learner.learn(batch, 1)
        return before, model, metrics, batch.tensors["entropies"]

    before, after, metrics, entropies = asyncio.run(learn())
    for row, trajectory in enumerate(one for each in groups for one in each.trajectories if one.score is not None):
        assert entropies[row].numpy() == pytest.approx(
            expected_entropies(before, trajectory, len(entropies[0])), rel=1e-4, nan_ok=True
        )
    start = {name: one.detach().clone() for name, one in before.named_parameters()}
    loss, gradient = expected_gradient(before, groups)
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradient.values()))
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["train/loss"] == pytest.approx(loss, rel=1e-4)
    # The first step of Adam goes one learning rate against the sign of the gradient, where that is not almost 0.
    moved = 0
    for name, parameter in after.named_parameters():
        clear = gradient[name].abs() > 1e-4 * norm
        step = (parameter.detach() - start[name])[clear]
        assert torch.equal(torch.sign(step), -torch.sign(gradient[name][clear])), name
        moved += int(clear.sum())
    assert moved > 100


def test_every_sample_is_in_one_mini_batch_and_another_step_has_another_order(tmp_path: Path) -> None:
    async def batch() -> Any:
        config = config_of(tmp_path)
        return Learner(config, await core_of(config), NullProgress()).make_batch(
            [group(n, [0.0, 1.0]) for n in (0, 1, 2)]
        )

    tensors = asyncio.run(batch()).tensors
    orders = []
    for key in ((7, 1, 0), (7, 1, 0), (7, 2, 0)):
        parts = list(mini_batches(tensors, 4, key))
        rows = [tuple(row.tolist()) for part in parts for row in part["input_ids"]]
        assert sorted(rows) == sorted(tuple(row.tolist()) for row in tensors["input_ids"])
        assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
        orders.append(rows)
    assert orders[0] == orders[1] != orders[2]


def test_where_every_episode_broke_the_first_reason_is_told(tmp_path: Path) -> None:
    async def learn() -> None:
        config = config_of(tmp_path)
        Learner(config, await core_of(config), NullProgress()).make_batch([group(0, [None, None])])

    with pytest.raises(RolloutError, match="the box vanished"):
        asyncio.run(learn())
