"""The games of the careless teacher: conversations of the environment's own boards."""

import re

import numpy as np

from roll.envs import make
from roll.models.toy.graded_answers import JudgedAnswers
from roll.models.toy.sokoban import SIGHT, TAG, hasty, measure
from roll.models.toy.sokoban_games import CarelessGames


def test_games_are_conversations_that_depend_on_their_seed_alone() -> None:
    games, again, others = (list(map(CarelessGames(games=4, seed=seed).__getitem__, range(4))) for seed in (1, 1, 2))

    assert games == again and games != others
    for game in games:
        roles = [message["role"] for message in game["messages"]]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
        assert game["messages"][1]["content"].count("#") > 8


def test_a_teacher_that_is_never_careless_needs_fewer_moves() -> None:
    careful, careless = (CarelessGames(games=30, carelessness=share, seed=3) for share in (0.0, 0.9))

    def solved(data: CarelessGames) -> int:
        return sum(len(data[number]["messages"]) <= 13 for number in range(30))

    assert solved(careful) > solved(careless)


def test_a_hasty_teacher_sees_the_end_of_a_level_only() -> None:
    env = make(TAG)
    env.reset(seed=5)
    puzzle = measure(env.state())
    for state, left in puzzle.left.items():
        shares, losses = hasty(puzzle, *state), puzzle.losses(*state)
        assert np.isclose(shares.sum(), 1.0)
        if left <= SIGHT:
            assert all(losses[move] == 0 for move in np.flatnonzero(shares))
    games = [CarelessGames(games=3, carelessness=0.0, seed=3, haste=share) for share in (0.0, 1.0)]
    assert [game["messages"] for game in map(games[0].__getitem__, range(3))] != [
        game["messages"] for game in map(games[1].__getitem__, range(3))
    ]


def test_answers_are_judged_by_what_is_right_but_for_the_noise() -> None:
    answers, noisy = (JudgedAnswers(answers=80, right=0.5, noise=noise, seed=4) for noise in (0.0, 1.0))
    assert {row["label"] for row in map(answers.__getitem__, range(len(answers)))} == {True, False}
    for number in range(80):
        assert noisy[number]["label"] is not answers[number]["label"]
        exercise = re.search(r"\d[\d +*-]*\d", answers[number]["prompt"])
        assert exercise is not None
        said = re.search(r"<answer>(.*)</answer>", answers[number]["completion"])
        assert said is not None
        assert (said[1] == str(eval(exercise[0]))) is answers[number]["label"]
