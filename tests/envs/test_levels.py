import hashlib
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.envs.sokoban import SokobanEnv, solve
from roll.envs.sokoban_levels import Level, check_room, flood, generate_level
from roll.envs.sokoban_solver import DIRECTIONS, walk_pushes


def assert_solves(env, actions):
    """Play from the current position; only the last action may end the episode, and with success."""
    for index, action in enumerate(actions):
        _, _, terminated, _, info = env.step(action)
        assert info["action"] == action
        assert info["metrics"]["action_is_effective"] == 1.0
        assert terminated == (index == len(actions) - 1)
    assert info["metrics"]["success"] == 1.0


def check_invariants(level, height, width, boxes):
    codes = np.array(level.codes())
    assert codes.shape == (height, width)
    border = np.concatenate([codes[0], codes[-1], codes[:, 0], codes[:, -1]])
    assert not border.any()
    assert level.boxes.bit_count() == level.targets.bit_count() == boxes
    assert level.boxes & ~level.targets
    assert Level.from_codes(level.codes()) == level
    whole = flood(1 << level.player, level.floor, level.stride)
    assert whole == level.floor


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(6, 6, 1), (5, 7, 1), (7, 5, 2), (3, 8, 1), (8, 3, 2), (8, 8, 2), (10, 10, 3), (9, 12, 3)]),
    st.integers(0, 2**63 - 1),
)
def test_solver_solves_every_level(shape, seed):
    height, width, boxes = shape
    env = SokobanEnv(dim_room=(height, width), num_boxes=boxes, action_pattern="", max_steps=None)
    env.reset(seed=seed)
    check_invariants(env.state(), *shape)
    actions = solve(env.state())
    assert actions
    assert_solves(env, actions)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 20), st.integers(3, 20), st.integers(1, 9), st.integers(1, 300), st.integers(0, 2**32))
def test_reverse_play_proves_levels_of_any_size(height, width, boxes, search_depth, seed):
    try:
        check_room(height, width, boxes)
    except ValueError:
        with pytest.raises(ValueError, match="too small"):
            generate_level(np.random.default_rng(seed), height, width, boxes, search_depth)
        return
    level, pushes = generate_level(np.random.default_rng(seed), height, width, boxes, search_depth)
    check_invariants(level, height, width, boxes)
    assert len(pushes) <= search_depth
    env = SokobanEnv(dim_room=(height, width), num_boxes=boxes, action_pattern="", max_steps=None)
    env.reset(seed=0, options={"level": level})
    moves = walk_pushes(level, pushes)
    # The proof may solve the level on the way to its end; play up to there.
    for move in moves:
        if env.step(DIRECTIONS[move])[2]:
            break
    assert env.state().solved


@pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 3), (4, 5), (5, 5), (6, 4)])
def test_crowded_rooms_still_get_a_level(height, width):
    most = (height - 2) * (width - 2) - 2
    for seed in range(20):
        level, pushes = generate_level(np.random.default_rng(seed), height, width, most, 5)
        check_invariants(level, height, width, most)
        walk_pushes(level, pushes)


def test_levels_range_from_one_push_to_many():
    lengths = Counter()
    boards = set()
    env = SokobanEnv()
    for seed in range(400):
        boards.add(env.reset(seed=seed)[0])
        lengths[len(solve(env.state()))] += 1
    assert len(boards) > 380
    assert min(lengths) == 1
    assert max(lengths) >= 10
    assert all(lengths[length] >= 20 for length in (1, 2, 3, 4, 5, 6))


def test_search_depth_of_one_gives_one_push_levels():
    for seed in range(50):
        level, pushes = generate_level(np.random.default_rng(seed), 6, 6, 1, 1)
        assert len(pushes) == 1
        assert len(walk_pushes(level, pushes)) >= len(solve(level))


def brute_force_fewest_moves(board):
    """Independent check: breadth-first over whole boards through the environment's own rules."""
    env = SokobanEnv(action_pattern="", max_steps=None)
    env.reset(seed=0, options={"level": board})
    seen, frontier, depth = {board}, [board], 0
    while frontier:
        depth += 1
        following = []
        for each in frontier:
            for action in env.actions:
                env.reset(options={"level": each})
                observation, _, done, _, _ = env.step(action)
                if done:
                    return depth
                if observation not in seen:
                    seen.add(observation)
                    following.append(observation)
        frontier = following
    return None


def test_one_box_solutions_are_as_short_as_brute_force():
    env = SokobanEnv(action_pattern="", dim_room=(5, 6))
    for seed in range(12):
        board, _ = env.reset(seed=seed)
        assert len(solve(env.state())) == brute_force_fewest_moves(board)


def test_solver_gives_up_at_max_nodes():
    env = SokobanEnv(dim_room=(10, 10), num_boxes=3)
    seed = next(seed for seed in range(100) if env.reset(seed=seed) and len(solve(env.state())) > 15)
    env.reset(seed=seed)
    assert solve(env.state(), max_nodes=1) is None


DIGEST_SCRIPT = """
import hashlib
from roll.envs import env_seed, make
boards = [make(tag, seed=env_seed(7, tag, group, 1)).reset()[0]
          for tag in ("SimpleSokoban", "LargerSokoban", "FrozenLake") for group in range(20)]
print(hashlib.sha256("".join(boards).encode()).hexdigest())
"""


@pytest.mark.processes
def test_same_seed_same_levels_whatever_the_hash_seed_of_the_process():
    digests = set()
    for hash_seed in ("0", "1234"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", DIGEST_SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(result.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_levels_of_a_seed_never_change():
    env = SokobanEnv()
    boards = "".join(env.reset(seed=seed)[0] for seed in range(50))
    assert hashlib.sha256(boards.encode()).hexdigest()[:16] == "6bfb5ef36a37ef5f"


def test_same_seed_same_levels_in_concurrent_threads():
    def boards(_):
        env = SokobanEnv(dim_room=(7, 7), num_boxes=2)
        return [env.reset(seed=seed)[0] for seed in range(60)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(boards, range(8)))
    assert all(result == results[0] for result in results)
    assert len(set(results[0])) == 60


def test_reset_without_a_seed_continues_the_generator():
    env, twin = SokobanEnv(), SokobanEnv()
    env.reset(seed=4)
    twin.reset(seed=4)
    first, second = env.reset()[0], env.reset()[0]
    assert first != second
    assert [first, second] == [twin.reset()[0], twin.reset()[0]]
