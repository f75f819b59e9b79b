import math
import random

import numpy as np
import pytest
from builtin_tags import PLAIN_TAGS
from hypothesis import given, settings
from hypothesis import strategies as st

import roll.envs

RESPONSES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["Up", "Down", "Left", "Right", "up", "", "None"]).map(lambda name: f"<answer>{name}</answer>"),
    st.lists(st.sampled_from(["<answer>", "</answer>", "<think>", "</think>", "Up", "\n", " ", "é√"]), max_size=8).map(
        "".join
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([tag for tag in PLAIN_TAGS if tag != "Debate"]),  # it takes any text as it is
    st.sampled_from(["<answer>(.*?)</answer>", r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", ""]),
    st.integers(0, 2**63 - 1),
    st.lists(RESPONSES, max_size=15),
)
def test_any_text_is_survived(tag, pattern, seed, responses):
    env = roll.envs.make(tag, seed=seed, action_pattern=pattern, format_penalty=-0.5)
    observation, _ = env.reset()
    assert observation in env.observation_space
    for response in responses:
        assert response in env.action_space
        before = observation
        observation, reward, terminated, truncated, info = env.step(response)
        assert observation in env.observation_space
        assert env.render() == observation
        assert math.isclose(reward, sum(info["reward_parts"].values()))
        assert not (terminated and truncated)
        if info["action"] is None:
            assert observation == before
            assert info["metrics"]["format_penalty"] == -0.5
        else:
            assert env.actions is None or info["action"] in env.actions
        if terminated or truncated:
            break


@pytest.mark.long
@pytest.mark.parametrize("tag", ["SimpleSokoban", "LargerSokoban", "FrozenLake"])
def test_random_play_keeps_every_board_sound(tag):
    moves = random.Random(0)
    env = roll.envs.make(tag, max_steps=60, action_pattern="", render_mode="rgb_array")
    effective = 0
    for seed in range(30):
        before, _ = env.reset(seed=seed)
        done = False
        while not done:
            observation, _, terminated, truncated, info = env.step(moves.choice(env.actions))
            assert (observation != before) == (info["metrics"]["action_is_effective"] == 1.0)
            assert observation in env.observation_space
            effective += observation != before
            before, done = observation, terminated or truncated
            if "Sokoban" in tag:
                board = env.board()
                assert np.isin(board, (3, 4)).sum() == env.num_boxes
                assert np.isin(board, (2, 3, 6)).sum() == env.num_boxes
                assert np.isin(board, (5, 6)).sum() == 1
        assert env.render().dtype == np.uint8
    assert effective > 50
