import gymnasium
import numpy as np
import pytest

import roll.envs
from roll.envs.adapters.minigrid_text import ACTIONS, MiniGridEnv
from roll.envs.errors import EnvConfigError


@pytest.mark.parametrize("game", ["BabyAI-GoToLocal-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-LavaGapS5-v0"])
def test_every_step_is_the_worlds_own(game):
    ours = MiniGridEnv(game, action_pattern="", max_steps=60)
    itself = gymnasium.make(game, max_episode_steps=-1, max_steps=60)
    for seed in range(5):
        probe = gymnasium.utils.seeding.np_random(seed)[0]
        ours.reset(seed=seed)
        seen, _ = itself.reset(seed=int(probe.integers(1 << 31)))
        over = False
        while not over:
            number = int(probe.integers(6))
            seen, paid, terminated, truncated, _ = itself.step(number)
            observation, reward, *ended, _ = ours.step(ACTIONS[number])
            assert (reward, ended) == (paid, [terminated, truncated])
            assert f"Mission: {seen['mission']}." in observation
            assert np.array_equal(ours.world.gen_obs()["image"], seen["image"])
            over = terminated or truncated


@pytest.mark.parametrize("tag", ["BabyAIGoTo", "BabyAIPickUp"])
def test_the_librarys_own_bot_carries_out_the_mission_by_our_names(tag, capsys):
    env = roll.envs.make(tag, action_pattern="")
    for seed in range(20):
        env.reset(seed=seed)
        before = env.world.gen_obs()["image"]
        solution = env.solution()
        assert np.array_equal(env.world.gen_obs()["image"], before)
        for action in solution:
            _, reward, terminated, _, info = env.step(action)
        assert terminated and reward > 0 and info["metrics"]["success"] == 1.0
    assert capsys.readouterr().out == ""


def test_what_is_seen_is_told_from_where_the_agent_stands():
    env = MiniGridEnv("MiniGrid-DoorKey-5x5-v0", action_pattern="")
    env.reset(seed=0)
    told = set()
    for _ in range(4):
        observation = env.step("Turn left")[0]
        view, visible = env.world.gen_obs_grid()
        for x, y in np.argwhere(visible):
            thing = view.get(int(x), int(y))
            if thing is not None and thing.type == "key":
                told.add("key")
                ahead, right = 6 - int(y), int(x) - 3
                place = [f"{ahead} ahead"] * (ahead > 0)
                place += [f"{abs(right)} to the {'right' if right > 0 else 'left'}"] * (right != 0)
                assert f"- yellow key: {', '.join(place)}" in observation
    assert told == {"key"}


def test_a_key_is_picked_up_carried_and_opens_its_door():
    env = MiniGridEnv("MiniGrid-DoorKey-5x5-v0", action_pattern="", max_steps=2000)
    env.reset(seed=0)
    moves, seen = np.random.default_rng(0), ""
    for _ in range(2000):
        observation, _, terminated, _, info = env.step(str(moves.choice(env.actions)))
        seen += observation
        if terminated:
            break
    assert "You carry: yellow key." in seen and "locked yellow door" in seen and "open yellow door" in seen
    assert info["metrics"]["success"] == 1.0


def test_its_picture_is_the_worlds():
    env = MiniGridEnv("MiniGrid-DoorKey-5x5-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (160, 160, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "BabyAI-GoToRedBal-v0"}, "is not in minigrid. Did you mean 'BabyAI-GoToRedBall-v0'"),
        ({"game": "MiniGrid-Empty-5x5-v0", "game_options": {"sizes": 4}}, "sizes"),
    ],
)
def test_what_cannot_work_is_told(options, message):
    with pytest.raises(EnvConfigError, match=message):
        MiniGridEnv(**options)
