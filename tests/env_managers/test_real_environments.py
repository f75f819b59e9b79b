"""The manager with the project's own environments, templates and chat renderer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import roll.envs
from roll.env_managers import (
    CallThreads,
    EnvManagerLimits,
    EpisodeSpec,
    Templates,
    TrajectoryEnvManager,
    check_group,
)
from roll.envs.frozen_lake import FrozenLakeEnv
from roll.generation import Completion, GenerationRequest
from roll.models.toy.tokenizer import build_tokenizer
from roll.rendering import ChatRenderer
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from

TOKENIZER = build_tokenizer(["Turn 1:\n######\n#__S##\nActions left: 9.\n<answer>Up</answer>\n"] * 4)
REPLIES = ("<answer>Up</answer>", "<answer>Left</answer>", "<answer>Jump</answer>", "<think>a</think> no", "")


async def random_policy(call: GenerationRequest) -> Completion:
    """Depends on the request's seed alone, and sometimes runs into the token limit."""
    rng = random.Random(call.seed)
    ids = TOKENIZER.encode(rng.choice(REPLIES), add_special_tokens=False)
    ids = ids if rng.random() < 0.3 and ids else [*ids, call.sampling.stop_token_ids[0]]
    return Completion(ids, [-rng.random() for _ in ids], "stop", (7, 8))


def play_group(name: str, threads: CallThreads | None, run_seed: int = 1) -> list[Trajectory]:
    tag = roll.envs.get_tag(name)
    manager = TrajectoryEnvManager(
        renderer=ChatRenderer(TOKENIZER),
        generate=random_policy,
        limits=EnvManagerLimits(6, 2048, max_new_tokens=64),
        templates=Templates(tag.agent_system_template, tag.agent_template),
        threads=threads,
    )

    async def run() -> list[Trajectory]:
        specs = [EpisodeSpec(name, "g", episode, seed=4, run_seed=run_seed) for episode in range(6)]
        return await asyncio.gather(*(manager.run(spec, lambda: roll.envs.make(name)) for spec in specs))

    return asyncio.run(run())


def without_times(trajectories: list[Trajectory]) -> list[Trajectory]:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turn.seconds = {}
    return trajectories


@pytest.mark.parametrize("name", ["SimpleSokoban", "FrozenLake"])
def test_what_is_trained_is_the_conversation_the_template_writes(name: str) -> None:
    group = play_group(name, CallThreads(2))
    check_group(group)
    tag: Any = roll.envs.get_tag(name)
    for trajectory in group:
        assert trajectory.error is None and trajectory.status in (Status.COMPLETED, Status.TRUNCATED_TURNS)
        assert {"success", "action_is_valid", "action_is_effective"} <= set(trajectory.metrics)
        messages = list(trajectory.messages)
        for index, turn in enumerate(trajectory.turns):
            assert turn.frame == turn.observation
            if index:
                text = tag.agent_template.replace("{turn_idx}", str(index + 1))
                text = text.replace("{observation}", turn.observation).replace("{actions_left}", str(6 - index))
                messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": turn.response})
        (sample,) = samples_from(trajectory)
        whole = TOKENIZER.apply_chat_template(messages, tokenize=False)
        assert whole.startswith(TOKENIZER.decode(sample.token_ids))
        assert sum(sample.rewards) == pytest.approx(trajectory.score)


def test_the_same_seeds_give_the_same_trajectories_with_any_number_of_threads() -> None:
    first = without_times(play_group("SimpleSokoban", None))
    assert first == without_times(play_group("SimpleSokoban", CallThreads(1)))
    assert first == without_times(play_group("SimpleSokoban", CallThreads(8)))
    assert first != without_times(play_group("SimpleSokoban", None, run_seed=2))


@pytest.mark.parametrize("own_luck", [False, True])
def test_members_of_a_group_have_the_luck_that_their_environment_says(own_luck: bool) -> None:
    """All go left on ice that slips: alike with the luck of the group, else each on a way of its own."""
    lake = ["FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFG"]

    async def left(call: GenerationRequest) -> Completion:
        ids = [*TOKENIZER.encode("<answer>Left</answer>", add_special_tokens=False), call.sampling.stop_token_ids[0]]
        return Completion(ids, [-0.5] * len(ids), "stop", (7, 8))

    manager = TrajectoryEnvManager(
        renderer=ChatRenderer(TOKENIZER), generate=left, limits=EnvManagerLimits(8, 2048, max_new_tokens=64)
    )

    async def run() -> list[Trajectory]:
        specs = [EpisodeSpec("Lake", "g", episode, seed=4) for episode in range(8)]
        return await asyncio.gather(
            *(manager.run(spec, lambda: FrozenLakeEnv(desc=lake, own_luck=own_luck)) for spec in specs)
        )

    members, again = asyncio.run(run()), asyncio.run(run())
    check_group(members)
    assert without_times(members) == without_times(again)
    ways = {tuple(turn.observation for turn in member.turns) for member in members}
    assert len(ways) > 4 if own_luck else len(ways) == 1
