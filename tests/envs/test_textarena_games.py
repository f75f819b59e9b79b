import random
import socket

import numpy as np
import pytest
import textarena

import roll.envs
from roll.envs.adapters.textarena_games import TextArenaEnv
from roll.envs.errors import EnvConfigError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a game reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_same_seed_and_moves_in_the_game_itself_say_and_pay_the_same():
    ours = roll.envs.make("GuessTheNumber")
    for seed in range(10):
        ours.reset(seed=seed)
        itself = textarena.make("GuessTheNumber-v0-raw")
        itself.reset(num_players=1, seed=ours._luck.seed)
        itself.get_observation()
        for number in (10, 5, 15, 10, 3, 18, 3):
            over, _ = itself.step(action=f"[{number}]")
            observation, reward, terminated, _, _ = ours.step(f"I guess [{number}]")
            assert terminated == over
            if over:
                assert reward == itself.close()[0][0]
                break
            assert itself.get_observation()[1][-1][1] in observation


def test_games_that_are_played_together_do_not_disturb_one_another():
    """2048 draws a tile after every move, from the one generator that everybody shares."""

    def game():
        env = TextArenaEnv("2048-v0", actions=["[Up]", "[Down]", "[Left]", "[Right]"])
        return env, [env.reset(seed=7)[0]]

    moves = ["[Left]", "[Down]"] * 6
    alone, seen = game()
    seen += [alone.step(move)[0] for move in moves]
    (first, of_first), (second, of_second) = game(), game()
    for move in moves:
        random.random(), np.random.random()
        of_first.append(first.step(move)[0])
        of_second.append(second.step(move)[0])
    assert seen == of_first == of_second


def test_the_generators_of_everybody_else_are_as_they_were():
    random.seed(3), np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3), np.random.seed(3)
    env = roll.envs.make("GuessTheNumber")
    env.reset(seed=0)
    env.step("[3]")
    assert (random.random(), np.random.random()) == expected


def test_tower_of_hanoi_can_be_solved():
    env = roll.envs.make("TowerOfHanoi")
    env.reset(seed=0)
    for move in ("A C", "A B", "C B", "A C", "B A", "B C", "A C"):
        _, reward, terminated, _, info = env.step(f"[{move}]")
    assert (reward, terminated, info["metrics"]["success"]) == (1.0, True, 1.0)


def test_a_move_that_the_game_refuses_has_no_effect():
    env = roll.envs.make("Mastermind")
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("[1 2]")
    assert "exactly 4 numbers" in observation and "[1 2]" not in observation
    assert not terminated and info["metrics"]["action_is_effective"] == 0.0
    assert env.step("[1 2 3 4]")[4]["metrics"]["action_is_effective"] == 1.0


def test_of_what_a_game_says_only_the_end_is_shown():
    env = TextArenaEnv("Mastermind-v0", longest=50)
    told = env.reset(seed=0)[0]
    assert told.startswith("…") and len(told) < 60 and told.endswith("guess the code.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "GuesTheNumber-v0"}, "not in textarena. Did you mean 'GuessTheNumber-v0'"),
        ({"game": "Wordle-v0"}, "from a network"),
        ({"game": "TwentyQuestions-v0"}, "from a network"),
        ({"game": "Nim-v0"}, "cannot be begun by one player"),
        ({"game": "Mastermind-v0", "game_options": {"code_len": 3}}, "unexpected keyword argument 'code_len'"),
    ],
)
def test_what_cannot_work_is_told(options, message):
    with pytest.raises(EnvConfigError, match=message):
        TextArenaEnv(**options)
