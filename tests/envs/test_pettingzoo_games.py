"""Games of PettingZoo with words, beside the library itself."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from pettingzoo import AECEnv
from pettingzoo.classic import connect_four_v3, tictactoe_v3

from roll.envs import Tag, make
from roll.envs.adapters.pettingzoo_games import PettingZooTable
from roll.envs.errors import EnvConfigError


@pytest.mark.parametrize(("name", "module"), [("tictactoe_v3", tictactoe_v3), ("connect_four_v3", connect_four_v3)])
def test_a_game_is_that_of_the_library_move_by_move(name: str, module: Any) -> None:
    for seed in range(20):
        luck = np.random.default_rng(seed)
        table, itself = PettingZooTable(name, "{}"), module.env()
        table.begin(luck)
        itself.reset(seed=0)
        earned = dict.fromkeys(itself.possible_agents, 0.0)
        for agent in itself.agent_iter():
            observation, reward, terminated, truncated, _ = itself.last()
            earned[agent] += reward
            if terminated or truncated:
                itself.step(None)
                continue
            seat = table.turn
            assert seat is not None and itself.possible_agents[seat] == agent
            told = table.told(seat)
            *board, moves = told.splitlines()
            planes = observation["observation"]
            assert [[cell == "X" for cell in row] for row in board] == planes[:, :, 0].astype(bool).tolist()
            assert [[cell == "O" for cell in row] for row in board] == planes[:, :, 1].astype(bool).tolist()
            allowed = list(map(int, re.findall(r"\d+", moves)))
            assert allowed == np.flatnonzero(observation["action_mask"]).tolist()
            move = int(luck.choice(allowed))
            table.move(seat, str(move))
            itself.step(move)
        assert table.turn is None
        assert [table.earned(seat) for seat in (0, 1)] == [earned[agent] for agent in itself.possible_agents]


def test_a_move_that_is_not_allowed_loses_as_the_library_has_it_and_fills_no_log(capfd: Any) -> None:
    table = PettingZooTable("tictactoe_v3", "{}")
    table.begin(np.random.default_rng(0))
    assert table.move(0, "4") and table.move(1, "4")
    assert table.turn is None and table.earned(1) == -1.0
    assert capfd.readouterr() == ("", "")
    table.env.step(None)
    assert "step() called after all agents are terminated" in "".join(capfd.readouterr()), "what else it warns of"


def test_random_moves_are_those_that_the_board_offers() -> None:
    env = make(Tag("Zoo", "pettingzoo", {"game": "tictactoe_v3"}, max_steps=9))
    for seed in range(20):
        observation, over, truncated = env.reset(seed=seed)[0], False, False
        while not over and not truncated:
            move = re.findall(r"\d+", observation.splitlines()[-1])[0]
            observation, reward, over, truncated, info = env.step(f"I take [{move}]")
        assert over and reward in (-1.0, 0.0, 1.0)
        assert sum(info["metrics"][each] for each in ("won", "drawn", "lost")) == 1


class Words(AECEnv):
    """Two players say a word each; the longer one wins. Written against PettingZoo alone."""

    metadata = {"name": "words", "is_parallelizable": False}

    def __init__(self) -> None:
        self.possible_agents = ["ann", "bob"]
        self.render_mode = None
        space = gymnasium.spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz Saynothing.")
        self.observation_spaces = self.action_spaces = dict.fromkeys(self.possible_agents, space)

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.said = list(self.possible_agents), {}
        for name, value in (
            ("rewards", 0),
            ("_cumulative_rewards", 0),
            ("terminations", False),
            ("truncations", False),
        ):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = "ann"

    def observe(self, agent: str) -> str:
        return "Say nothing" if not self.said else next(iter(self.said.values()))

    def step(self, action: str | None) -> None:
        if self.terminations[self.agent_selection]:
            return self._was_dead_step(action)
        self.said[self.agent_selection] = action
        if len(self.said) == 2:
            longer = max(self.said, key=lambda agent: len(self.said[agent]))
            self.rewards = {agent: 1 if agent == longer else -1 for agent in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = "bob" if self.agent_selection == "ann" else "ann"
        return None

    def render(self) -> None: ...

    def close(self) -> None: ...


def test_any_game_of_the_standard_that_speaks_text_is_one() -> None:
    table = PettingZooTable(f"{__name__}:Words", "{}")
    table.begin(np.random.default_rng(0))
    assert table.told(0) == "Say nothing" and table.move(0, "ab") and table.told(1) == "ab" and table.move(1, "abc")
    assert table.turn is None and (table.earned(0), table.earned(1)) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("game", "told"),
    [
        ("tictactoe_v9", "Did you mean 'tictactoe_v3'"),
        ("leduc_holdem_v4", "No module named"),
        ("chess_v6", "No module named|no board"),
    ],
)
def test_what_cannot_be_played_in_words_is_told(game: str, told: str) -> None:
    with pytest.raises((EnvConfigError, ImportError), match=told):
        make(Tag("Zoo", "pettingzoo", {"game": game}))
