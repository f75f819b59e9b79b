import numpy as np
import pytest
from builtin_tags import BUILTIN_TAGS

import roll.envs
from tests.rings import exhaustive_but

KEPT = ("SimpleSokoban", "FrozenLake", "Taxi", "Blackjack", "ChainSum", "GuessTheNumber", "Mastermind")


@pytest.mark.parametrize("tag", exhaustive_but(BUILTIN_TAGS, *KEPT))
def test_a_random_agent_plays_two_hundred_episodes(tag):
    """Every one ends within its limit and pays finite rewards that are the sum of their parts."""
    env = roll.envs.make(tag)
    moves = np.random.default_rng(0)
    first = env.reset(seed=0)[0]
    for seed in range(200):
        env.reset(seed=seed)
        for _ in range(env.max_steps):
            action = str(moves.choice(env.actions)) if env.actions else f"[{moves.integers(100)}]"
            _, reward, terminated, truncated, info = env.step(env.response_with(action))
            assert np.isfinite(reward) and reward == pytest.approx(sum(info["reward_parts"].values()))
            assert info["action"] == action
            if terminated or truncated:
                break
        assert terminated != truncated
    assert env.reset(seed=0)[0] == first
    env.close()
