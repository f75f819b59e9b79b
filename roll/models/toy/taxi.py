"""The teachers of ``toy_taxi``: Taxi in Gymnasium's words, started with the rides that are not held out.

The perfect teacher takes the shortest way. The careless one drives *straight* at where it wants to go, into walls; it
*overlooks* that it has arrived, drops passengers at whatever stop it comes by, and makes moves at random. Most of its
moves are mistakes of the same kind, so that the likeliest moves of a policy that imitates it are mistakes too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from roll.envs import Tag, make
from roll.envs.base import TextEnv
from roll.models.toy.demonstrations import Encode
from roll.models.toy.games import Course, Solver, demonstrations
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

PATTERN: Final = (
    r"[+|][^\n]{9}[+|]\n|The taxi T is in row |, column |, at |\.\nThe passenger is |at (?=[RGYB])|in the taxi"
    r"| and wants to go to |Pick up|Drop off| ?[A-Z]?[a-z]+|[\s\S]"
)
"""What may become a token: a line of the map, what stands around numbers and stops, an action, a word, a character."""

HELD_OUT: Final = (
    "at R and wants to go to Y|at Y and wants to go to G|at G and wants to go to B|at B and wants to go to R"
)
"""Four of twelve rides, one from each stop and one to each, as an observation tells them: only validation starts so."""
TURNS: Final = 24
"""Actions of a ride at most; no ride needs more than 18."""

RIDE: Final = Tag(
    "TaxiRide",
    "gymnasium_text",
    {"game": "Taxi", "reward_scale": 0.05, "starts": rf"^(?![\s\S]*(?:{HELD_OUT}))"},
    max_steps=TURNS,
)
_COURSE: Final = Course("TaxiRide", 1.0, "Drive the taxi.")
_BEST: Final[dict[int, str]] = {}
"""Best actions that were searched for, by the state of the game: all games have the same table of moves."""
_DRIVE: Final = ("South", "North", "East", "West")
NOISE: Final = 0.25
"""Random actions in the games of the perfect teacher; not imitated, they only vary where the taxi is."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How carefully a teacher drives; every number is a probability.

    Attributes:
        random: An action is any of the six.
        straight: A move is towards where it wants to go, first east or west, then north or south, whatever is between.
        overlooks: At the stop where it should pick up or drop off, it drives on.
        hurries: At any other stop, it drops off a passenger who is in the taxi.
    """

    random: float
    straight: float
    overlooks: float
    hurries: float


CARELESS: Final = Habits(random=0.3, straight=0.65, overlooks=0.4, hurries=0.4)


def best_action(env: TextEnv) -> str:
    """Return the first action of a shortest ride."""
    ride: Any = env
    state = int(ride.game.unwrapped.s)
    if state not in _BEST:
        solution = ride.solution()
        assert solution, "every ride has a solution, from everywhere"
        _BEST[state] = solution[0]
    return _BEST[state]


def careless_action(env: TextEnv, habits: Habits, luck: np.random.Generator) -> str:
    """Return what a teacher of such habits does.

    Args:
        env: The ride as it is.
        habits: How carefully the teacher drives.
        luck: For every choice.
    """
    if luck.random() < habits.random:
        return str(luck.choice(np.array(env.actions)))
    best = best_action(env)
    if best not in _DRIVE:
        return _any_way(luck) if luck.random() < habits.overlooks else best
    ride: Any = env
    game = ride.game.unwrapped
    row, column, passenger, destination = (int(each) for each in game.decode(game.s))
    is_riding = passenger == len(game.locs)
    if is_riding and (row, column) in game.locs and luck.random() < habits.hurries:
        return "Drop off"
    if luck.random() >= habits.straight:
        return best
    there = game.locs[destination if is_riding else passenger]
    if column != there[1]:
        return "East" if column < there[1] else "West"
    return "South" if row < there[0] else "North"


def _any_way(luck: np.random.Generator) -> str:
    return _DRIVE[int(luck.integers(len(_DRIVE)))]


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: what rides say, and the words of their templates."""
    env, luck = make(RIDE), np.random.default_rng(0)
    words = "system user assistant Drive the taxi."
    for seed in range(300):
        observation, over = env.reset(seed=seed)[0], False
        while not over:
            yield from (observation, "\n".join(words.split()), words, *(env.actions or ()))
            action = best_action(env) if luck.random() < 0.5 else _any_way(luck)
            observation, _, terminated, truncated, _ = env.step(f"<answer>{action}</answer>")
            over = terminated or truncated


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the rides of the perfect and of the careless teacher, each without end."""
    luck = np.random.default_rng([seed, 1])
    careless: Solver = partial(careless_action, habits=CARELESS, luck=luck)

    def taught(solver: Solver, seed: int, noise: float) -> Iterator[Sample]:
        return demonstrations([(_COURSE, make(RIDE), solver)], renderer, encode, seed=seed, noise=noise)

    return taught(best_action, seed, NOISE), taught(careless, seed + 1, 0.0)
