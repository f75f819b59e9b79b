"""An episode that never answers earns no more than one that plays, whatever the environment pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.envs import TAGS, Outcome, TextEnv, make
from roll.envs.adapters.gymnasium_text import GymnasiumTextEnv
from roll.envs.errors import EnvConfigError


class Paying(TextEnv):
    """Pays for each action what it was told to."""

    def __init__(self, pay: dict[str, float], *, worst_reward: float = -1.0, format_penalty: float = 0.0) -> None:
        super().__init__(actions=list(pay), max_steps=5, worst_reward=worst_reward, format_penalty=format_penalty)
        self.pay = pay

    def start(self) -> str:
        return "Choose."

    def act(self, action: str) -> Outcome:
        return Outcome("Again.", {"pay": self.pay[action]}, terminated=action == "end")


def total(env: TextEnv, actions: list[str]) -> float:
    env.reset(seed=0)
    earned = 0.0
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(f"<answer>{action}</answer>")
        earned += reward
        if terminated or truncated:
            break
    return earned


@given(
    pay=st.dictionaries(st.sampled_from(["a", "b", "c", "end"]), st.floats(-3, 3), min_size=1),
    choices=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    penalty=st.floats(-1, 0),
)
def test_silence_never_pays(pay: dict[str, float], choices: list[int], penalty: float) -> None:
    env = Paying(pay, worst_reward=min(0.0, *pay.values()), format_penalty=penalty)
    names = list(pay)
    played = total(env, [names[choice % len(names)] for choice in choices])
    assert total(env, ["not an action"] * 5) <= played + 1e-9


def test_silence_costs_by_default_and_its_charge_is_named() -> None:
    env = Paying({"a": -0.5})
    env.reset(seed=0)
    _, reward, _, _, info = env.step("I do not know.")
    assert reward == -1.0 and info["reward_parts"] == {"idle": -1.0}


def test_an_action_that_costs_more_than_silence_is_refused_with_the_fix() -> None:
    env = Paying({"a": -2.0})
    env.reset(seed=0)
    with pytest.raises(EnvConfigError, match=r"'a' earned -2, less than .*\(-1\).*worst_reward=-2"):
        env.step("<answer>a</answer>")


def test_a_sum_of_parts_that_is_a_little_less_is_no_mistake() -> None:
    assert total(Paying({"a": -0.1 - 0.2}, worst_reward=-0.3), ["a"]) == pytest.approx(-0.3)


def test_an_environment_that_sets_its_own_charge_is_not_checked() -> None:
    class Own(Paying):
        def idle(self) -> dict[str, float]:
            return {"tax": -0.25}

    env = Own({"a": -2.0})
    assert total(env, ["a"]) == -2.0 and total(env, ["?"]) == -0.25


@pytest.mark.parametrize("tag", ["SimpleSokoban", "LargerSokoban", "FrozenLake"])
@pytest.mark.parametrize("seed", range(5))
def test_silence_never_pays_in_what_is_shipped(tag: str, seed: int) -> None:
    assert tag in TAGS
    env = make(tag)
    limit = env.max_steps
    silent = _episode(env, seed, limit, ["?"])
    for name in env.actions:
        assert silent <= _episode(env, seed, limit, [name]) + 1e-9
    assert silent <= _episode(env, seed, limit, list(env.actions)) + 1e-9


def _episode(env: TextEnv, seed: int, limit: int, actions: list[str]) -> float:
    env.reset(seed=seed)
    earned = 0.0
    for step in range(limit):
        _, reward, terminated, truncated, _ = env.step(f"<answer>{actions[step % len(actions)]}</answer>")
        earned += reward
        if terminated or truncated:
            break
    return earned


def test_what_an_adapter_lets_one_say_is_named_by_its_option_before_scaling() -> None:
    env = GymnasiumTextEnv("CliffWalking-v1", {}, worst=-0.5, reward_scale=0.1)
    env.reset(seed=1)
    with pytest.raises(EnvConfigError, match=r"earned -0\.1, less than .* \(-0\.05\).*worst: -1 in env_config"):
        env.step(env.response_with("Up") or "")
