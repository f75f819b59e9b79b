"""The teachers of ``toy_mixed``: Sokoban and easy sums, one or the other at random.

The policy starts from ``toy_sokoban``, so the games only keep alive what it does. Sums are new to it; they are posed in
one way, so that their digits always stand in the same places. First they are all worked out; then most are guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from roll.data.problems import draw, held_out, plainly
from roll.models.toy.arithmetic import PERFECT, Habits, respond
from roll.models.toy.demonstrations import Encode, demonstration
from roll.models.toy.sokoban import TAG, demonstrations, near_sighted
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

GAMES_SHARES = (0.1, 0.2)
"""Share of the demonstrations that are games, beside a perfect and a careless teacher of sums."""
CARELESS = Habits(guesses=(0.6,), forgets=0.5, slips=0.03)
EASIEST = 1


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return demonstrations where sums are worked out, and where they often are not, each without end."""
    played = _games(renderer, encode, np.random.default_rng(seed))

    def taught(habits: Habits, share: float) -> Iterator[Sample]:
        solved = _sums(renderer, encode, habits, Random(f"{seed}/sums/{share}"))
        return _either(played, solved, share, Random(f"{seed}/{share}"))

    return taught(PERFECT, GAMES_SHARES[0]), taught(CARELESS, GAMES_SHARES[1])


def _either(played: Iterator[Sample], solved: Iterator[Sample], share: float, random: Random) -> Iterator[Sample]:
    while True:
        yield next(played if random.random() < share else solved)


def _games(renderer: ChatRenderer, encode: Encode, random: np.random.Generator) -> Iterator[Sample]:
    for game in demonstrations(renderer, encode, near_sighted, noise=0.0, random=random):
        answered = {place + offset for place in game.answers for offset in (-1, 0, 1, 2)}
        yield demonstration(TAG, game.token_ids, [index in answered for index in range(len(game.token_ids))])


def _sums(renderer: ChatRenderer, encode: Encode, habits: Habits, random: Random) -> Iterator[Sample]:
    """Yield sums of the easiest level with answers; those of the validation files are never among them."""
    while True:
        problem = plainly(draw("arithmetic", EASIEST, random))
        if held_out(problem.exercise):
            continue
        prompt = renderer.initial_ids([{"role": "user", "content": problem.prompt}])
        answer = encode(respond(problem, habits, random)) + [renderer.stop_token_ids[0]]
        yield demonstration(problem.tag, prompt + answer, [False] * len(prompt) + [True] * len(answer))
