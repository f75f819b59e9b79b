import numpy as np
import pytest
from builtin_tags import BUILTIN_TAGS

import roll.envs
from roll.certificates.episodes import settled
from roll.envs.errors import MissingDependencyError
from tests.rings import exhaustive_but

KEPT = ("SimpleSokoban", "FrozenLake", "Taxi", "Blackjack", "ChainSum", "GuessTheNumber", "Mastermind")
# Each command of the cave starts its program, and each house takes seconds to make.
OPTIONS = {"ColossalCave": {"max_steps": 5}, "TextWorldHouse": {"games": 2, "max_steps": 5}}
EPISODES = {"ColossalCave": 40, "TextWorldHouse": 6}


@pytest.mark.parametrize("tag", exhaustive_but(BUILTIN_TAGS, *KEPT))
def test_a_random_agent_plays_two_hundred_episodes(tag):
    """Every one ends within its limit and pays finite rewards that are the sum of their parts."""
    try:
        env = roll.envs.make(tag, **OPTIONS.get(tag, {}))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    moves = np.random.default_rng(0)
    first = settled(env.reset(seed=0))[0]
    for seed in range(EPISODES.get(tag, 200)):
        settled(env.reset(seed=seed))
        for _ in range(env.max_steps):
            action = str(moves.choice(env.actions)) if env.actions else f"[{moves.integers(100)}]"
            _, reward, terminated, truncated, info = settled(env.step(env.response_with(action)))
            assert np.isfinite(reward) and reward == pytest.approx(sum(info["reward_parts"].values()))
            assert info["action"] == action
            if terminated or truncated:
                break
        assert terminated != truncated
    assert settled(env.reset(seed=0))[0] == first
    settled(env.close())
