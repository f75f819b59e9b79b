"""``toy_taxi``: it drives, and its teachers demonstrate no ride that is held out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest

from roll.config import AgenticConfig, load
from roll.envs import make
from roll.envs.base import TextEnv
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_tokenizer
from roll.models.toy import TAXI_WEIGHTS_DIRECTORY, taxi
from roll.models.toy.build import RECIPES
from roll.rendering import ChatRenderer

TOKENIZER = load_tokenizer("toy_taxi")
RENDERER = ChatRenderer(TOKENIZER)
RIDE = re.compile(r"at ([RGYB]) and wants to go to ([RGYB])")


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def delivered(drive: Callable[[TextEnv], str], rides: int) -> float:
    """Return the share of rides that a teacher completes."""
    env, successes = make(taxi.RIDE), 0.0
    for seed in range(rides):
        env.reset(seed=seed)
        over, info = False, {}
        while not over:
            _, _, terminated, truncated, info = env.step(f"<answer>{drive(env)}</answer>")
            over = terminated or truncated
        successes += info["metrics"]["success"]
    return successes / rides


def test_the_perfect_teacher_always_delivers_and_the_careless_one_seldom() -> None:
    luck = np.random.default_rng(1)
    assert delivered(taxi.best_action, 60) == 1.0
    assert 0.2 < delivered(lambda env: taxi.careless_action(env, taxi.CARELESS, luck), 150) < 0.4


def test_the_careless_teacher_drives_into_walls_where_the_perfect_one_goes_around() -> None:
    env, luck = make(taxi.RIDE), np.random.default_rng(1)
    straight = taxi.Habits(random=0.0, straight=1.0, overlooks=0.0, hurries=0.0)
    told = ""
    for seed in range(1000):
        told, _ = env.reset(seed=seed)
        if "row 4, column 0, at Y." in told and "at B" in told:
            break
    assert taxi.best_action(env) == "North" and taxi.careless_action(env, straight, luck) == "East"
    assert env.step("<answer>East</answer>")[0] == told


def test_no_ride_that_is_held_out_is_demonstrated_or_trained_on() -> None:
    config = load("taxi")
    assert isinstance(config, AgenticConfig)
    rides = {}
    for name in ("TaxiRide", "TaxiRideHeldOut"):
        env = make("Taxi", starts=config.custom_envs[name].env_config["starts"])
        rides[name] = {RIDE.findall(env.reset(seed=seed)[0])[0] for seed in range(300)}
    assert len(rides["TaxiRide"]) == 8 and len(rides["TaxiRideHeldOut"]) == 4
    assert not rides["TaxiRide"] & rides["TaxiRideHeldOut"]
    for teacher in taxi.teachers(RENDERER, encode, seed=3):
        texts = [TOKENIZER.decode(sample.token_ids) for sample in itertools.islice(teacher, 60)]
        starts = {RIDE.findall(text)[0] for text in texts}
        assert starts <= rides["TaxiRide"]


def test_the_configuration_says_what_the_demonstrations_said() -> None:
    config = load("taxi")
    assert isinstance(config, AgenticConfig)
    ours = config.custom_envs["TaxiRide"]
    assert ours.max_steps == taxi.RIDE.max_steps and ours.agent_system_template == "Drive the taxi."
    env, same = make("Taxi", starts=ours.env_config["starts"]), make(taxi.RIDE)
    assert [env.reset(seed=seed)[0] for seed in range(50)] == [same.reset(seed=seed)[0] for seed in range(50)]


def test_only_what_the_teacher_says_is_imitated() -> None:
    for teacher in taxi.teachers(RENDERER, encode, seed=3):
        for sample in itertools.islice(teacher, 20):
            pairs = zip(sample.token_ids, sample.response_mask, strict=True)
            said = TOKENIZER.decode([token for token, own in pairs if own])
            assert set(re.sub(r"<answer>(South|North|East|West|Pick up|Drop off)</answer><\|im_end\|>", "", said)) == set()


def test_it_is_shipped_and_a_turn_has_few_tokens() -> None:
    assert resolve_pretrain("toy_taxi") == str(TAXI_WEIGHTS_DIRECTORY) == str(RECIPES["taxi"].weights)
    assert sum(file.stat().st_size for file in TAXI_WEIGHTS_DIRECTORY.iterdir()) < 4_000_000
    env = make(taxi.RIDE)
    assert all(len(encode(f"<answer>{action}</answer>")) == 3 for action in env.actions or ())
    assert max(len(encode(env.reset(seed=seed)[0])) for seed in range(100)) <= 19


@pytest.mark.parametrize("seed", [0])
def test_a_build_is_reproducible(seed: int) -> None:
    first, second = (
        list(itertools.islice(teacher, 3))
        for teacher in (taxi.teachers(RENDERER, encode, seed)[1], taxi.teachers(RENDERER, encode, seed)[1])
    )
    assert [each.token_ids for each in first] == [each.token_ids for each in second]
