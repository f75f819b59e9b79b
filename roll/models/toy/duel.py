"""The teachers of ``toy_duel``: Nim as TextArena has it, against random moves.

The perfect one leaves piles whose sizes have no bit in common to an odd number of them, which wins (Bouton 1901, "Nim,
a game with a complete mathematical theory"); the careless one moves at random.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import xor
from typing import Final

import numpy as np

from roll.envs import Tag, make
from roll.envs.base import TextEnv
from roll.models.toy.demonstrations import Encode
from roll.models.toy.games import Course, demonstrations
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

PATTERN: Final = r"\[\d \d\]|\n  pile \d: |\n+| ?[A-Z]?[a-z]+|[\s\S]"
"""What may become a token: a move, what stands before the size of a pile, a word, any other character."""

_PILES: Final = re.compile(r"pile (\d): (\d)")
_NIM: Final = Tag(
    "Nim",
    "textarena_duel",
    {
        "game": "Nim-v0",
        "actions": [f"[{pile} {count}]" for pile in range(3) for count in range(1, 4 + pile)],
        "seats": ["policy", f"{__name__}:any_move"],
        "longest": 49,  # the piles alone
    },
    max_steps=12,
)
_COURSE: Final = Course("Nim", 1.0, "Play the game.", answer="{action}")


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: what games say."""
    env, luck = make(_NIM), np.random.default_rng(0)
    words = "system user assistant Play the game."
    for seed in range(100):
        observation, over = env.reset(seed=seed)[0], False
        while not over:
            yield from (observation, "\n".join(words.split()), words)
            yield any_move(observation, luck)
            observation, _, over, _, _ = env.step(any_move(observation, luck))
    yield from _NIM.env_config["actions"] * 20


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the games of the perfect and of the careless teacher, each without end."""

    def taught(move: Callable[[str, np.random.Generator], str], seed: int) -> Iterator[Sample]:
        luck = np.random.default_rng([seed, 1])

        def solver(env: TextEnv) -> str:
            return move(str(env.render()), luck)

        return demonstrations([(_COURSE, make(_NIM), solver)], renderer, encode, seed=seed, noise=0.0)

    return taught(good_move, seed), taught(any_move, seed + 1)


def good_move(told: str, luck: np.random.Generator) -> str:
    """Return a move that wins, or any if there is none."""
    piles = _piles(told)
    balance = reduce(xor, piles.values())
    wins = [f"[{pile} {size - (size ^ balance)}]" for pile, size in piles.items() if size ^ balance < size]
    return wins[int(luck.integers(len(wins)))] if wins else any_move(told, luck)


def any_move(told: str, luck: np.random.Generator) -> str:
    """Return a move that the game allows, each as likely as any other."""
    moves = [f"[{pile} {count + 1}]" for pile, size in _piles(told).items() for count in range(size)]
    return moves[int(luck.integers(len(moves)))]


def _piles(told: str) -> dict[str, int]:
    return {pile: int(size) for pile, size in _PILES.findall(told.rpartition("Current Pile:")[2])}
