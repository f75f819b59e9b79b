"""``toy_duel``: it moves as Nim allows, and does not know how to win."""

from __future__ import annotations

import numpy as np
import pytest

from roll.envs import make
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_tokenizer
from roll.models.toy import DUEL_WEIGHTS_DIRECTORY
from roll.models.toy.build import RECIPES
from roll.models.toy.duel import _NIM, any_move, good_move


def won(move: str) -> float:
    player = {"good": good_move, "any": any_move}[move]
    luck, wins = np.random.default_rng(1), 0
    for seed in range(60):
        env = make(_NIM)
        told, over, reward = env.reset(seed=seed)[0], False, 0.0
        while not over:
            told, reward, over, _, _ = env.step(player(told, luck))
        wins += reward > 0
    return wins / 60


def test_the_perfect_teacher_wins_and_the_careless_one_moves_as_others_do() -> None:
    assert won("good") > 0.9 and 0.25 < won("any") < 0.75


@pytest.mark.parametrize(("piles", "wins"), [((3, 4, 5), {"[0 2]"}), ((0, 1, 5), {"[2 4]"}), ((2, 2, 1), {"[2 1]"})])
def test_the_perfect_move_is_that_of_the_theory(piles: tuple[int, ...], wins: set[str]) -> None:
    told = "Current Pile:\n" + "\n".join(f"  pile {number}: {size}" for number, size in enumerate(piles))
    assert {good_move(told, np.random.default_rng(seed)) for seed in range(8)} == wins


def test_it_is_shipped_and_reads_a_move_as_one_token() -> None:
    assert resolve_pretrain("toy_duel") == str(DUEL_WEIGHTS_DIRECTORY) == str(RECIPES["duel"].weights)
    assert sum(file.stat().st_size for file in DUEL_WEIGHTS_DIRECTORY.iterdir()) < 4_000_000
    tokenizer = load_tokenizer("toy_duel")
    assert all(len(tokenizer.encode(move)) == 1 for move in _NIM.env_config["actions"])
