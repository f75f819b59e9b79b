import numpy as np
import pytest

import roll.envs


@pytest.fixture
def env():
    from examples.minesweeper import Minesweeper

    yield Minesweeper(size=6, mines=5, max_steps=40)
    roll.envs.unregister("minesweeper")


def test_numbers_count_the_mines_around_and_the_first_cell_is_safe(env):
    for seed in range(50):
        env.reset(seed=seed)
        observation = env.step("<answer>3 4</answer>")[0]
        rows = [line.split() for line in observation.splitlines()]
        mined = np.zeros((8, 8), dtype=int)
        for row, column in env.mines:
            mined[row + 1, column + 1] = 1
        assert mined.sum() == 5 and rows[2][3] == "0"
        for (row, column), shown in np.ndenumerate(np.array(rows)):
            assert shown in (".", str(mined[row : row + 3, column : column + 3].sum()))


def test_opening_what_has_no_mine_wins_and_earns_one(env):
    for seed in range(20):
        env.reset(seed=seed)
        total, over, action = 0.0, False, "1 1"
        while not over:
            _, reward, over, _, info = env.step(f"<answer>{action}</answer>")
            total += reward
            action = None if over else env.solution()[0]
        assert info["metrics"]["success"] == 1.0 and total == pytest.approx(1.0)


def test_a_mine_ends_the_game(env):
    env.reset(seed=0)
    env.step("<answer>3 4</answer>")
    row, column = next(iter(env.mines))
    assert env.step(f"<answer>{row + 1} {column + 1}</answer>")[1:3] == (-1.0, True)
