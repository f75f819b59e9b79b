import warnings

import gymnasium
import pytest
from builtin_tags import PLAIN_TAGS
from gymnasium.utils.env_checker import check_env

import roll.envs
from roll.envs.errors import EpisodeNotRunningError

OPTION_SETS = [
    ("roll/Sokoban-v0", {}),
    ("roll/Sokoban-v0", {"dim_room": (5, 7), "num_boxes": 2, "max_steps": 7, "format_penalty": -0.2}),
    ("roll/Sokoban-v0", {"dim_room": (10, 10), "num_boxes": 3, "observation_format": "coords"}),
    ("roll/Sokoban-v0", {"action_pattern": "", "grid_lookup": {"0": "[W]", 5: "<P>"}, "search_depth": 3}),
    ("roll/FrozenLake-v0", {}),
    ("roll/FrozenLake-v0", {"size": 8, "p": 0.6, "is_slippery": False, "step_penalty": -0.01}),
    ("roll/FrozenLake-v0", {"map_seed": 3, "action_lookup": {0: "West", 1: "South", 2: "East", 3: "North"}}),
    ("roll/FrozenLake-v0", {"desc": ["SFF", "FHG"], "render_mode": "rgb_array"}),
]


@pytest.mark.parametrize(("env_id", "options"), OPTION_SETS)
def test_passes_gymnasium_checker_without_warnings(env_id, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id, **options).unwrapped)


@pytest.mark.parametrize("tag", PLAIN_TAGS)
def test_every_tag_steps_through_gymnasium_types(tag):
    env = roll.envs.make(tag, seed=0)
    observation, info = env.reset()
    assert observation in env.observation_space
    assert set(info["metrics"]) == set(info["metrics_agg"])
    nonsense = (
        "nonsense" if env.action_pattern or env.actions else ""
    )  # where anything may be said, all else is an action
    observation, reward, terminated, truncated, info = env.step(nonsense)
    assert observation in env.observation_space
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert info["action"] is None
    assert set(info["metrics"]) >= {"success", "action_is_valid", "action_is_effective", "format_penalty"}
    assert set(info["metrics"]) == set(info["metrics_agg"])
    assert set(info["metrics_agg"].values()) <= {"last", "mean", "sum", "max"}


def test_step_before_reset_and_after_the_end_is_an_error():
    env = roll.envs.make("SimpleSokoban", max_steps=1)
    with pytest.raises(EpisodeNotRunningError, match="reset"):
        env.step("Up")
    env.reset(seed=0)
    assert env.step("no action")[3] is True
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("Up")


def test_step_refuses_what_is_not_text():
    env = roll.envs.make("SimpleSokoban", seed=0)
    env.reset()
    with pytest.raises(TypeError, match="as text, got int"):
        env.step(1)


def test_render_modes_give_text_an_image_or_nothing():
    text = roll.envs.make("SimpleSokoban", seed=0, render_mode="ansi")
    observation, _ = text.reset()
    assert text.render() == observation
    silent = roll.envs.make("SimpleSokoban", seed=0, render_mode=None)
    silent.reset()
    assert silent.render() is None
    with pytest.raises(gymnasium.error.Error, match="ansi, rgb_array"):
        roll.envs.make("SimpleSokoban", render_mode="human")
