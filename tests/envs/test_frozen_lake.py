from collections import Counter
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.envs.errors import EnvConfigError
from roll.envs.frozen_lake import FrozenLakeEnv, generate_lake, shortest_path

MAP = ["SFF", "FFF", "HFG"]


def on_map(**options):
    env = FrozenLakeEnv(desc=MAP, action_pattern="", **options)
    return env, env.reset(seed=0)[0]


def test_moves_go_where_they_should_without_slips():
    env, observation = on_map(is_slippery=False)
    assert observation == "P__\n___\nO_G"
    assert env.step("Right")[0] == "_P_\n___\nO_G"
    assert env.step("Down")[0] == "___\n_P_\nO_G"
    observation, reward, terminated, _, info = env.step("Up")
    assert (observation, reward, terminated) == ("_P_\n___\nO_G", 0.0, False)
    env.step("Down")
    env.step("Down")
    observation, reward, terminated, truncated, info = env.step("Right")
    assert (observation, reward, terminated, truncated) == ("___\n___\nO_√", 1.0, True, False)
    assert info["reward_parts"] == {"step": 0.0, "goal": 1.0}
    assert info["metrics"]["success"] == 1.0


def test_falling_into_a_hole_ends_the_episode_without_success():
    env, _ = on_map(is_slippery=False, step_penalty=-0.1)
    env.step("Down")
    observation, reward, terminated, _, info = env.step("Down")
    assert (observation, reward, terminated) == ("___\n___\nX_G", -0.1, True)
    assert info["metrics"]["success"] == 0.0


def test_walking_against_the_edge_is_not_effective():
    env, observation = on_map(is_slippery=False)
    for action in ("Up", "Left"):
        after, _, _, _, info = env.step(action)
        assert after == observation
        assert info["metrics"]["action_is_valid"] == 1.0
        assert info["metrics"]["action_is_effective"] == 0.0


def test_slippery_ice_goes_three_ways_equally_often_and_never_back():
    env = FrozenLakeEnv(desc=["FFF", "FSF", "FFG"], action_pattern="", is_slippery=True)
    env.reset(seed=0)
    landed = Counter()
    for _ in range(3000):
        env.reset()
        env.step("Right")
        landed[env.position] += 1
    assert set(landed) == {(1, 2), (0, 1), (2, 1)}
    # Three standard deviations of a binomial with n = 3000, p = 1/3 are 77.
    assert all(abs(count - 1000) < 90 for count in landed.values())


@pytest.mark.parametrize("rate", [1 / 3, 0.8])
def test_every_move_has_the_outcomes_of_gymnasium_with_their_probabilities(rate):
    theirs = gymnasium.make("FrozenLake-v1", is_slippery=True, success_rate=rate).unwrapped
    lake = ["".join(cell.decode() for cell in row) for row in theirs.desc]
    ours = FrozenLakeEnv(desc=lake, action_pattern="", is_slippery=True, success_rate=rate, max_steps=None)
    side = (1 - rate) / 2
    # One draw from each of the three stretches of [0, 1), and how long the stretch is.
    draws = {rate / 2: rate, rate + side / 2: side, 1 - side / 2: side}
    for state, actions in theirs.P.items():
        row, column = divmod(state, len(lake[0]))
        if lake[row][column] in "HG":
            continue
        for action, outcomes in actions.items():
            expected, found = Counter(), Counter()
            for chance, there, reward, ends in outcomes:
                expected[there, reward, bool(ends)] += chance
            for draw, chance in draws.items():
                ours.reset(seed=0)
                ours.position = (row, column)
                ours.np_random = SimpleNamespace(random=lambda value=draw: value)
                _, reward, ends, _, _ = ours.step(ours.actions[action])
                found[ours.position[0] * len(lake[0]) + ours.position[1], reward, ends] += chance
            assert found == pytest.approx(expected)


def test_members_of_a_group_slip_by_themselves_if_they_have_luck_of_their_own():
    def walk(member: int | None, own_luck: bool = True) -> list[str]:
        env = FrozenLakeEnv(desc=["FFFF", "FSFF", "FFFF", "FFFG"], action_pattern="", own_luck=own_luck, max_steps=None)
        first, _ = env.reset(seed=7, options=None if member is None else {"member": member})
        return [first, *(env.step("Left")[0] for _ in range(20))]

    walks = [walk(member) for member in range(8)]
    assert len({each[0] for each in walks}) == 1 and len({tuple(each) for each in walks}) == 8
    assert walks == [walk(member) for member in range(8)]
    assert walk(None) == walk(None, own_luck=False)
    with pytest.raises(EnvConfigError, match="takes none"):
        walk(1, own_luck=False)


def test_an_exploring_start_is_any_cell_from_which_the_goal_can_be_reached():
    lake = ["SFHF", "FHFH", "FFFH", "HFFG"]  # the cell at the top right is cut off
    env = FrozenLakeEnv(desc=lake, action_pattern="", random_start=True)
    begun = [env.reset(seed=seed) and env.position for seed in range(200)]
    expected = {(0, 0), (0, 1), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2), (3, 1), (3, 2)}
    assert set(begun) == expected
    assert begun == [env.reset(seed=seed) and env.position for seed in range(200)]
    assert max(map(begun.count, expected)) < 3 * min(map(begun.count, expected)), "about equally often"


def test_success_rate_one_never_slips():
    env = FrozenLakeEnv(desc=["FFF", "FSF", "FFG"], action_pattern="", success_rate=1.0)
    for seed in range(50):
        env.reset(seed=seed)
        env.step("Up")
        assert env.position == (0, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), st.floats(0, 1), st.integers(0, 2**32))
def test_every_map_can_be_crossed(size, p, seed):
    lake = generate_lake(np.random.default_rng(seed), size, p)
    path = shortest_path(lake)
    assert len(path) >= 2 * (size - 1)
    env = FrozenLakeEnv(desc=lake, is_slippery=False, action_pattern="", max_steps=None)
    env.reset(seed=0)
    for direction in path:
        _, _, terminated, _, info = env.step(env.actions[direction])
    assert terminated
    assert info["metrics"]["success"] == 1.0


def test_maps_vary_with_the_seed_and_map_seed_fixes_them():
    env = FrozenLakeEnv()
    assert len({env.reset(seed=seed)[0] for seed in range(30)}) > 20
    assert env.reset(seed=5)[0] == FrozenLakeEnv().reset(seed=5)[0]
    fixed = FrozenLakeEnv(map_seed=1)
    assert len({fixed.reset(seed=seed)[0] for seed in range(10)}) == 1
    assert fixed.reset()[0] != FrozenLakeEnv(map_seed=2).reset()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 1}, "from 2 to 200"),
        ({"size": 100_000}, "from 2 to 200"),
        ({"p": 1.5}, "between 0 and 1"),
        ({"desc": ["SF", "FFG"]}, "equal length"),
        ({"desc": ["SF", "SG"]}, "exactly one S"),
        ({"desc": ["SH", "HG"]}, "no way"),
        ({"action_lookup": {4: "Jump"}}, "unknown key 4"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(options, message):
    with pytest.raises(EnvConfigError, match=message):
        FrozenLakeEnv(**options)


def test_picture_shows_player_hole_and_goal():
    env, _ = on_map(is_slippery=False, render_mode="rgb_array")
    image = env.render()
    assert (image.shape, image.dtype) == ((96, 96, 3), np.uint8)
    player, ice, hole, goal = image[:32, :32], image[:32, 32:64], image[64:, :32], image[64:, 64:]
    assert len({tile.tobytes() for tile in (player, ice, hole, goal)}) == 4
    env.step("Down")
    env.step("Down")
    assert not np.array_equal(env.render()[64:, :32], hole)
