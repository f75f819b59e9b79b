from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from builtin_tags import BUILTIN_TAGS

import roll.envs
from roll.certificates.episodes import settled
from roll.envs import Tag
from roll.envs.errors import MissingDependencyError
from tests.rings import exhaustive_but

KEPT = ("SimpleSokoban", "FrozenLake", "Taxi", "Blackjack", "ChainSum", "GuessTheNumber", "Mastermind")
# Each command of the cave starts its program, and each house takes seconds to make.
OPTIONS = {"ColossalCave": {"max_steps": 2}, "TextWorldHouse": {"games": 2, "max_steps": 3}}
OTHERS = {
    "tictactoe": Tag("tictactoe", "pettingzoo", {"game": "tictactoe_v3"}, max_steps=9),
    "connect_four": Tag("connect_four", "pettingzoo", {"game": "connect_four_v3"}, max_steps=21),
    "bfcl": Tag("bfcl", "bfcl", max_steps=4),
    "tau2": Tag("tau2", "tau2", {"domain": "mock", "tasks": "base"}, max_steps=4),
}
"""Types without a tag. Those of servers and programs (openenv, nemo_gym, verifiers) are played in their own tests."""
APART = {"bfcl": "bfcl_eval", "tau2": "tau2"}
"""Their packages are installed apart, and an action is what a response is to them: calls, or text for the user."""


@pytest.mark.parametrize("tag", exhaustive_but([*BUILTIN_TAGS, *OTHERS], *KEPT))
def test_a_random_agent_plays_two_hundred_episodes(tag: str) -> None:
    """Every one ends within its limit and pays finite rewards that are the sum of their parts."""
    if tag in APART and find_spec(APART[tag]) is None:
        pytest.skip(f"{APART[tag]} is not installed: tests/envs/{tag}.txt")
    try:
        env = roll.envs.make(OTHERS.get(tag, tag), **OPTIONS.get(tag, {}))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    moves = np.random.default_rng(0)
    first = settled(env.reset(seed=0))[0]
    for seed in range(200):
        settled(env.reset(seed=seed))
        for _ in range(env.max_steps):
            action = str(moves.choice(env.actions)) if env.actions else f"[{moves.integers(100)}]"
            _, reward, terminated, truncated, info = settled(env.step(env.response_with(action)))
            assert np.isfinite(reward) and reward == pytest.approx(sum(info["reward_parts"].values()))
            assert info["action"] == action or tag in APART
            if terminated or truncated:
                break
        assert terminated != truncated
    assert settled(env.reset(seed=0))[0] == first
    settled(env.close())
