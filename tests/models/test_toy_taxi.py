"""``toy_taxi``: it drives badly, and its teachers start with no ride that is held out."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from roll.config import AgenticConfig, load
from roll.envs import make
from roll.envs.base import TextEnv
from roll.generation import GenerationRequest, SamplingParams
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import TAXI_WEIGHTS_DIRECTORY, taxi
from roll.models.toy.build import RECIPES
from roll.rendering import ChatRenderer
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

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
        over = False
        info: dict[str, Any] = {}
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


def test_nothing_demonstrated_or_trained_on_starts_with_a_ride_that_is_held_out() -> None:
    config = load("taxi")
    assert isinstance(config, AgenticConfig)
    rides = {}
    for name in ("TaxiRide", "TaxiRideHeldOut"):
        env = make("Taxi", starts=config.custom_envs[name].env_config["starts"])
        rides[name] = {RIDE.findall(env.reset(seed=seed)[0])[0] for seed in range(300)}
    assert len(rides["TaxiRide"]) == 8 and len(rides["TaxiRideHeldOut"]) == 4
    assert not rides["TaxiRide"] & rides["TaxiRideHeldOut"]
    for teacher in taxi.teachers(RENDERER, encode, seed=3):
        texts = [RENDERER.decode(sample.token_ids) for sample in itertools.islice(teacher, 60)]
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
            said = str(TOKENIZER.decode([token for token, own in pairs if own]))
            assert re.fullmatch(r"(<answer>(South|North|East|West|Pick up|Drop off)</answer><\|im_end\|>)+", said)


def test_it_is_shipped_and_a_turn_has_few_tokens() -> None:
    assert resolve_pretrain("toy_taxi") == str(TAXI_WEIGHTS_DIRECTORY) == str(RECIPES["taxi"].weights)
    assert sum(file.stat().st_size for file in TAXI_WEIGHTS_DIRECTORY.iterdir()) < 4_000_000
    env = make(taxi.RIDE)
    assert all(len(encode(f"<answer>{action}</answer>")) == 3 for action in env.actions or ())
    assert max(len(encode(env.reset(seed=seed)[0])) for seed in range(100)) <= 19


def test_demonstrations_are_the_same_again() -> None:
    for perfect_or_careless in (0, 1):
        first, second = (
            [each.token_ids for each in itertools.islice(taxi.teachers(RENDERER, encode, 5)[perfect_or_careless], 4)]
            for _ in range(2)
        )
        assert first == second


def test_the_shipped_policy_answers_with_actions_and_drives_into_walls() -> None:
    env = make("Taxi", starts=taxi.HELD_OUT)
    engine = HfInferStrategy(load_model("toy_taxi"), max_slots=64, max_length=128)
    sampling = SamplingParams(max_new_tokens=6, stop_token_ids=RENDERER.stop_token_ids)

    async def answer(seed: int) -> str:
        told = [{"role": "system", "content": "Drive the taxi."}, {"role": "user", "content": env.reset(seed=seed)[0]}]
        completion = await engine.generate(
            GenerationRequest(str(seed), RENDERER.initial_ids(told), sampling, seed=seed)
        )
        return RENDERER.decode(completion.token_ids)

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(answer, range(64)))

    infos = []
    for seed, said in enumerate(asyncio.run(all_of_them())):
        env.reset(seed=seed)
        infos.append(env.step(said)[-1]["metrics"])
    assert sum(info["action_is_valid"] for info in infos) > 60
    assert 0.4 < sum(info["action_is_effective"] for info in infos) / 64 < 0.95
