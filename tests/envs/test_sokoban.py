from collections import deque

import numpy as np
import pytest

from roll.envs.errors import EnvConfigError
from roll.envs.sokoban import SokobanEnv, solve

CORRIDOR = "#######\n#PXO__#\n#######"
TWO_BOXES = "#######\n#_____#\n#PXO__#\n#_____#\n#_XO__#\n#######"


def loaded(board, **options):
    env = SokobanEnv(action_pattern="", **options)
    observation, _ = env.reset(seed=0, options={"level": board})
    assert observation == board
    return env


def test_last_box_on_target_earns_step_box_and_finish():
    observation, reward, terminated, truncated, info = loaded(CORRIDOR).step("Right")
    assert observation == "#######\n#_P√__#\n#######"
    assert reward == pytest.approx(10.9)
    assert info["reward_parts"] == {"step": -0.1, "box": 1.0, "finish": 10.0}
    assert (terminated, truncated) == (True, False)
    assert info["metrics"]["success"] == 1.0
    assert info["metrics"]["boxes_on_target"] == 1.0


def test_box_on_then_off_target_earns_and_costs():
    env = loaded(TWO_BOXES)
    _, reward, terminated, _, info = env.step("Right")
    assert (reward, terminated) == (pytest.approx(0.9), False)
    assert info["metrics"]["boxes_on_target"] == 1.0
    observation, reward, _, _, info = env.step("Right")
    assert observation.splitlines()[2] == "#__SX_#"
    assert reward == pytest.approx(-1.1)
    assert info["reward_parts"] == {"step": -0.1, "box": -1.0}
    observation, reward, _, _, _ = env.step("Left")
    assert observation.splitlines()[2] == "#_POX_#"
    assert reward == pytest.approx(-0.1)


def test_box_from_target_to_target_changes_no_box_reward():
    env = loaded("#######\n#PXOO_#\n#_X___#\n#######")
    env.step("Right")
    _, reward, terminated, _, info = env.step("Right")
    assert (reward, terminated) == (pytest.approx(-0.1), False)
    assert info["metrics"]["boxes_on_target"] == 1.0


def test_all_rewards_are_options():
    env = loaded(CORRIDOR, step_penalty=-0.5, box_on_target=2, finish=7)
    assert env.step("Right")[1] == pytest.approx(8.5)


@pytest.mark.parametrize("action", ["Up", "Left"])
def test_walking_into_a_wall_is_valid_but_not_effective(action):
    env = loaded(CORRIDOR)
    observation, reward, _, _, info = env.step(action)
    assert (observation, reward) == (CORRIDOR, -0.1)
    assert (info["metrics"]["action_is_valid"], info["metrics"]["action_is_effective"]) == (1.0, 0.0)


@pytest.mark.parametrize("board", ["######\n#PX#O#\n######", "#######\n#PXXOO#\n#######"])
def test_blocked_box_does_not_move(board):
    observation, _, _, _, info = loaded(board).step("Right")
    assert observation == board
    assert info["metrics"]["action_is_effective"] == 0.0


def test_invalid_response_costs_the_penalty_and_a_step_and_changes_nothing():
    env = loaded(CORRIDOR, format_penalty=-0.25, max_steps=2)
    observation, reward, terminated, truncated, info = env.step("dance")
    assert (observation, terminated, truncated) == (CORRIDOR, False, False)
    assert reward == pytest.approx(-0.35)
    assert info["reward_parts"] == {"step": -0.1, "format": -0.25}
    assert info["metrics"]["format_penalty"] == -0.25
    assert info["metrics"]["action_is_valid"] == 0.0
    assert env.step("dance")[2:4] == (False, True)


def test_solving_in_the_last_step_terminates_rather_than_truncates():
    assert loaded(CORRIDOR, max_steps=1).step("Right")[2:4] == (True, False)


def test_player_on_target_is_shown_and_left_behind():
    env = loaded("######\n#PO__#\n#_X__#\n#____#\n######")
    assert env.step("Right")[0].splitlines()[1] == "#_S__#"
    assert env.step("Right")[0].splitlines()[1] == "#_OP_#"


def test_solver_finds_the_fewest_moves():
    level = loaded("#######\n#O____#\n#__X__#\n#____P#\n#######").state()
    # Below the box to push it up (2 moves there, 1 push), around to its right (2), and twice to the left.
    assert len(solve(level)) == 7
    assert solve(level.codes(), names=("N", "S", "W", "E")) is not None
    assert solve(np.array(level.codes())) == solve(level)


def fewest_pushes_by_search(env: SokobanEnv) -> int | None:
    """Breadth first over moves, of which only pushes are counted (0-1 search): no solver's cleverness."""
    state = env.state()
    queue, seen = deque([(0, state.player, state.boxes)]), set()
    while queue:
        pushes, player, boxes = queue.popleft()
        if not boxes & ~state.targets:
            return pushes
        if (player, boxes) in seen:
            continue
        seen.add((player, boxes))
        for delta in state.deltas:
            there, beyond = player + delta, player + 2 * delta
            if not state.floor >> there & 1:
                continue
            if not boxes >> there & 1:
                queue.appendleft((pushes, there, boxes))
            elif state.floor >> beyond & 1 and not boxes >> beyond & 1:
                queue.append((pushes + 1, there, boxes ^ (1 << there) ^ (1 << beyond)))
    return None


@pytest.mark.parametrize("boxes", [1, 2])
def test_difficulty_is_the_fewest_pushes_and_the_same_of_the_same_seed(boxes):
    env, other = (SokobanEnv(dim_room=(6, 6), num_boxes=boxes) for _ in range(2))
    found = [env.difficulty(seed) for seed in range(12)]
    assert len(set(found)) > 2
    for seed in reversed(range(12)):
        other.reset(seed=seed)
        assert found[seed] == fewest_pushes_by_search(other) == other.difficulty(seed)


def test_solver_says_none_for_a_lost_level_and_nothing_for_a_solved_one():
    assert solve(loaded("######\n#X__P#\n#___O#\n######").state()) is None
    assert solve(loaded("########\n#X__P#O#\n#___XO_#\n########").state()) is None
    env = loaded(CORRIDOR)
    env.step("Right")
    assert solve(env.state()) == []


def test_state_describes_the_board_after_moves():
    env = loaded(TWO_BOXES)
    for action in ("Right", "Right", "Down"):
        env.step(action)
    level = env.state()
    symbols = env.grid_lookup
    assert "\n".join("".join(symbols[code] for code in row) for row in level.codes()) == env.render()
    assert np.array_equal(env.board(), level.codes())


def test_coordinates_describe_the_same_board():
    env = SokobanEnv(observation_format="coords")
    observation, _ = env.reset(seed=0, options={"level": CORRIDOR})
    assert observation == "player: (1, 1)\nbox: (1, 2)\ntarget: (1, 3)\nfloor: (1, 4) (1, 5)"
    assert observation in env.observation_space


def test_longer_symbols_line_up():
    env = SokobanEnv(grid_lookup={0: "wall ", 1: ". "})
    observation, _ = env.reset(seed=0)
    assert observation.startswith("wall wall ")
    assert observation in env.observation_space
    assert env.reset(options={"level": observation})[0] == observation


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim_room": [100_000, 100_000]}, "longer than 200"),
        ({"dim_room": (4, 4)}, "too small"),
        ({"dim_room": (6, 6), "num_boxes": 15}, "too small"),
        ({"dim_room": 6}, r"such as \[6, 6\]"),
        ({"num_boxes": 0}, "at least 1"),
        ({"search_depth": 0}, "at least 1"),
        ({"max_steps": 0}, "at least 1"),
        ({"grid_lookup": {7: "?"}}, "unknown key 7"),
        ({"grid_lookup": {"0": "P"}}, "used once"),
        ({"grid_vocab": {"%": "wall"}}, "not in grid_lookup"),
        ({"action_lookup": {1: "left"}}, "upper and lower case"),
        ({"observation_format": "json"}, "grid"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(options, message):
    with pytest.raises(EnvConfigError, match=message):
        SokobanEnv(**options)


@pytest.mark.parametrize(
    ("board", "message"),
    [
        ("####\n#PX#\n####", "a target for each"),
        ("#####\n#_XO#\n#####", "exactly one player"),
        ("#####\n_PXO#\n#####", "border"),
        ("#####\n#PXO\n#####", "row 1 has 4 cells"),
        ("#####\n#P?O#\n#####", "not a symbol"),
    ],
)
def test_malformed_boards_are_refused(board, message):
    with pytest.raises(EnvConfigError, match=message):
        SokobanEnv().load(board)


def test_picture_has_a_distinct_tile_for_each_kind_of_cell():
    env = SokobanEnv(render_mode="rgb_array")
    env.reset(seed=0, options={"level": "######\n#_OX√#\n#P__O#\n######"})
    image = env.render()
    assert (image.shape, image.dtype) == ((4 * 32, 6 * 32, 3), np.uint8)
    tiles = {
        image[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32].tobytes()
        for row, column in [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    }
    env.reset(options={"level": "######\n#__XO#\n#S___#\n######"})
    tiles.add(env.render()[64:96, 32:64].tobytes())
    assert len(tiles) == 7


@pytest.mark.parametrize(("least", "most"), [(1, 3), (6, 9), (12, 20)])
def test_levels_have_as_many_pushes_as_wanted(least: int, most: int) -> None:
    """Growing bounds are a curriculum: by the solver, whose solutions are the shortest, levels get harder."""
    env = SokobanEnv(dim_room=(8, 8), num_boxes=2, pushes=(least, most))
    shortest = []
    for seed in range(8):
        env.reset(seed=seed)
        moves = env.solution()
        if moves is None:
            continue
        before = env.state().boxes
        pushed = 0
        for move in moves:
            env.step(f"<answer>{move}</answer>")
            pushed += env.state().boxes != before
            before = env.state().boxes
        assert env.state().solved
        shortest.append(pushed)
    assert max(shortest) <= most and np.mean(shortest) >= {1: 1, 6: 3, 12: 5}[least]


def test_bounds_that_make_no_sense_are_told() -> None:
    for pushes in ((3,), (0, 4), (5, 2)):
        with pytest.raises(EnvConfigError, match="give the least and the most"):
            SokobanEnv(pushes=pushes)
