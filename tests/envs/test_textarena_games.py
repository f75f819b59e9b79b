import json
import random
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import textarena

import roll.envs
from roll.envs import UnavailableError, make
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


def first_free(told: str, luck: np.random.Generator) -> str:
    """An opponent of a module of one's own: takes the first square that is free."""
    return "[" + re.findall(r"'\[(\d)\]'", told.rpartition("Available Moves")[2])[0] + "]"


def silent(told: str, luck: np.random.Generator) -> str:
    return "I pass."


def duel(opponent: Any, moves: list[str], **options: Any) -> tuple[list[Any], Any]:
    seat = options.pop("seat", 0)
    env = make("TicTacToe", seats=["policy", opponent][:: 1 if seat == 0 else -1], shuffle=False, **options)
    env.reset(seed=1)
    return [env.step(move) for move in moves], env


@pytest.mark.parametrize(("seat", "moves", "reward"), [(0, ["[3]", "[4]", "[5]"], 1.0), (1, ["[8]", "[7]"], -1.0)])
def test_a_duel_is_the_librarys_own_game(seat: int, moves: list[str], reward: float) -> None:
    """Against an opponent that takes the first free square, beside the library stepped by hand for both players."""
    steps, env = duel(f"{__name__}:first_free", moves, seat=seat)
    game = textarena.make("TicTacToe-v0-raw")
    game.reset(num_players=2, seed=0)
    ours, over = iter(moves), False
    while not over:
        player, observation = game.get_observation()
        told = "\n".join(said for _, said, _ in observation)
        over, _ = game.step(next(ours) if player == seat else first_free(told, np.random.default_rng()))
    rewards, info = game.close()
    *_, last = steps
    assert last[1] == rewards[seat] == reward and last[2] and last[0] == info[seat]["reason"]
    assert last[4]["metrics"]["success"] == float(reward > 0) == last[4]["metrics"]["won"]
    assert all(step[1] == 0 and not step[2] for step in steps[:-1])


def test_a_move_that_is_refused_is_the_policys_again_and_loses_the_second_time() -> None:
    steps, _ = duel("random", ["[4]", "[4]", "[4]"], seat=0)
    assert [step[2] for step in steps] == [False, False, True]
    assert steps[1][4]["metrics"]["action_is_effective"] == 0.0 and steps[2][1] == -1.0


def test_an_opponent_that_cannot_play_loses() -> None:
    steps, _ = duel(f"{__name__}:silent", ["[4]"], seat=0)
    assert steps[0][1] == 1.0 and steps[0][2]


def test_seats_and_the_opponents_moves_are_the_seeds() -> None:
    def games(seed: int) -> tuple[int, list[str]]:
        env = make("TicTacToe")
        seen = [env.reset(seed=seed)[0]]
        for move in ("[0]", "[1]", "[2]", "[3]"):
            observation, _, terminated, truncated, _ = env.step(move)
            seen.append(observation)
            if terminated or truncated:
                break
        return env.seat, seen

    assert games(5) == games(5)
    assert {games(seed)[0] for seed in range(12)} == {0, 1}


def test_an_opponent_that_is_none_is_told() -> None:
    with pytest.raises(EnvConfigError, match="no_such"):
        make("TicTacToe", seats=["policy", "no_such:move"])
    with pytest.raises(EnvConfigError, match="one of them must be 'policy'"):
        make("TicTacToe", seats=["random", "random"])
    with pytest.raises(EnvConfigError, match="cannot be begun by 2 players"):
        make("TicTacToe", game="GuessTheNumber-v0")


def test_a_model_behind_an_endpoint_has_the_other_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake one in this process, which thinks, and takes the first square that is free; then it is gone."""
    asked: list[dict[str, Any]] = []
    status = 200

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            move = first_free(asked[-1]["messages"][-1]["content"], np.random.default_rng())
            message = {"role": "assistant", "content": f"<think>[8]?</think>I take {move}"}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": message}]}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.undo()  # this game does reach for a server
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opponent = {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "frozen"}
        steps, env = duel(opponent, ["[3]", "[4]", "[5]"], seat=0)
        same, _ = duel(f"{__name__}:first_free", ["[3]", "[4]", "[5]"], seat=0)
        assert [step[:3] for step in steps] == [step[:3] for step in same]
        assert [message["role"] for message in asked[1]["messages"]] == ["system", "user", "assistant", "user"]
        assert asked[0]["model"] == "frozen" and asked[0]["seed"] != asked[1]["seed"]
        status = 503
        with pytest.raises(UnavailableError, match="503"):
            duel(opponent, ["[3]"], seat=0)
        server.shutdown()
    with pytest.raises(UnavailableError, match="ConnectError"):
        duel(opponent, ["[3]"], seat=0)
    with pytest.raises(EnvConfigError, match="an endpoint has url, model, and api_key"):
        make("TicTacToe", seats=["policy", {"url": "http://127.0.0.1:1"}])
