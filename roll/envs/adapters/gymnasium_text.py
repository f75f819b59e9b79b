"""Gymnasium's games with numbered actions, above all its toy text, played in words."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, load_env_creator

from roll.envs.base import DEFAULT_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError

_TRIES = 1000
"""Starts that are drawn at most."""
_COLOURED = re.compile("\x1b\\[[0-9;]*[1-9]m(.*?)\x1b\\[0m", re.DOTALL)


class GymnasiumTextEnv(TextEnv):
    """A game of Gymnasium, whose actions have names and whose observations are text.

    Taxi, CliffWalking, Blackjack and FrozenLake are told in words of this file; any other game with numbered actions
    shows what it renders as text, else its observation as Python prints it.

    Args:
        game: Id of the game, ``"Taxi"`` (the newest version) or ``"Taxi-v4"``; ``"module:Id-v0"`` imports a module
            first.
        game_options: Options of the game itself, such as ``{"is_rainy": True}`` for Taxi.
        actions: Names of actions 0, 1, …; by default those of the game, or the numbers.
        reward_scale: What the game pays is multiplied by this.
        worst: The least that the game pays for an action, before it is scaled; by default that of the game, or -1. A
            response without a valid action earns it.
        own_luck: Whether each member of a group has luck of its own. Otherwise members that do the same fare alike.
        starts: A regular expression: an episode starts only where the observation matches it somewhere, so that some
            starts can be held out. ``None``: everywhere.
        max_steps: The episode is truncated after so many steps, whatever limit the game is registered with.
        format_penalty: Added to the reward of a response without a valid action.
        action_pattern: Finds the action in a response; empty: the response is the action.
        env_instruction: Replaces the generated instruction.
        render_mode: ``"ansi"``, ``"rgb_array"`` (a picture of the text) or ``None``.

    Raises:
        EnvConfigError: If there is no such game, or an option cannot work.
    """

    def __init__(
        self,
        game: str,
        game_options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        reward_scale: float = 1.0,
        worst: float | None = None,
        own_luck: bool = False,
        starts: str | None = None,
        max_steps: int | None = 100,
        format_penalty: float = 0.0,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        self.game = _made(game, dict(game_options or {}))
        self.words = _WORDS.get(type(self.game.unwrapped).__name__, _AnyGame())
        if not reward_scale > 0:
            raise EnvConfigError(f"reward_scale={reward_scale}: must be more than 0")
        self.reward_scale = float(reward_scale)
        self.has_own_luck = bool(own_luck)
        try:
            self.starts = re.compile(starts or "")
        except re.error as error:
            raise EnvConfigError(f"starts={starts!r}: {error}") from error
        count = int(cast(gymnasium.spaces.Discrete, self.game.action_space).n)
        names = tuple(actions or self.words.actions or map(str, range(count)))
        if len(names) != count:
            raise EnvConfigError(f"actions={list(names)}: {game} has {count} actions, so give {count} names")
        super().__init__(
            actions=names,
            action_pattern=action_pattern,
            format_penalty=format_penalty,
            worst_reward=self.reward_scale * (self.words.worst if worst is None else worst),
            max_steps=max_steps,
            env_instruction=env_instruction,
            render_mode=render_mode,
        )

    def start(self) -> str:
        """Reset the game with a seed drawn from ours, until it starts where it may.

        Raises:
            EnvConfigError: If it never does.
        """
        for _ in range(_TRIES):
            observation, _ = self.game.reset(seed=int(self.np_random.integers(1 << 31)))
            told = self.words.told(self.game, observation)
            if self.starts.search(told):
                return told
        raise EnvConfigError(f"starts={self.starts.pattern!r}: matches none of {_TRIES} starts; the last is\n{told}")

    def act(self, action: str) -> Outcome:
        """Step the game."""
        if self.has_own_luck:
            self.game.unwrapped.np_random = self.np_random
        before = self._observation
        observation, paid, terminated, truncated, _ = self.game.step((self.actions or ()).index(action))
        told = self.words.told(self.game, observation)
        over = bool(terminated or truncated)
        success = bool(terminated) and self.words.is_won(float(paid))
        return Outcome(told, {"game": self.reward_scale * float(paid)}, over, success, told != before or over)

    def solution(self) -> list[str] | None:
        """Return the fewest actions that win, by the game's table of moves; ``None`` without one or with chance."""
        game: Any = self.game.unwrapped
        table: Mapping[int, Mapping[int, Any]] | None = getattr(game, "P", None)
        if table is None or getattr(game, "fickle_passenger", False):
            return None
        frontier: list[tuple[int, tuple[int, ...]]] = [(int(game.s), ())]
        seen = {frontier[0][0]}
        for state, taken in frontier:  # grows as it goes
            for number, outcomes in table[state].items():
                if len(outcomes) != 1:
                    return None
                _, there, paid, is_over = outcomes[0]
                if is_over and self.words.is_won(float(paid)):
                    return [(self.actions or ())[each] for each in (*taken, number)]
                if not is_over and int(there) not in seen:
                    seen.add(int(there))
                    frontier.append((int(there), (*taken, number)))
        return None

    def describe(self) -> str:
        """Return what the game is, and what its symbols mean."""
        paragraphs = (self.game.unwrapped.__doc__ or "").split("\n\n")
        said = (" ".join(each.split()) for each in paragraphs if each.strip() and not each.strip().startswith("#"))
        return self.words.about or next(said, "")

    def close(self) -> None:
        """Close the game."""
        self.game.close()


@dataclass(frozen=True)
class _AnyGame:
    """What the games leave unsaid; as it stands, of a game that this file knows nothing of.

    Attributes:
        about: The task and the symbols, for the instruction.
        actions: Names of the actions, in the order of the game's numbers.
        worst: The least that an action is paid.
        told: The observation in words, of the game and what it observes.
        is_won: Whether an episode that ends with this reward is won.
    """

    about: str = ""
    actions: tuple[str, ...] = ()
    worst: float = -1.0
    told: Callable[[Any, Any], str] = lambda game, observation: _rendered(game) or f"Observation: {observation}"
    is_won: Callable[[float], bool] = lambda paid: paid > 0


def _rendered(game: Any) -> str:
    """Return what a game prints; what it colours is in brackets."""
    text = str(game.render()) if game.render_mode == "ansi" else ""
    return _COLOURED.sub(r"[\1]", text).strip("\n")


def _taxi(game: Any, observation: Any) -> str:
    row, column, passenger, destination = (int(each) for each in game.decode(int(observation)))
    board = [[cell.decode() for cell in line] for line in game.desc]
    board[row + 1][2 * column + 1] = "T"
    stops = [_letter(game, *place) for place in game.locs]
    where = "in the taxi" if passenger == len(stops) else f"at {stops[passenger]}"
    lines = ["".join(line) for line in board]
    at = f"The taxi T is in row {row}, column {column}" + (
        f", at {_letter(game, row, column)}." if (row, column) in game.locs else "."
    )
    return "\n".join([*lines, at, f"The passenger is {where} and wants to go to {stops[destination]}."])


def _letter(game: Any, row: int, column: int) -> str:
    letter: str = game.desc[row + 1, 2 * column + 1].decode()
    return letter


def _blackjack(game: Any, observation: Any) -> str:
    total, dealer, has_ace = observation
    ace = "an ace that counts 11" if has_ace else "no ace that counts 11"
    return f"Your cards sum to {total}, with {ace}. The dealer shows {'an ace' if dealer == 1 else dealer}."


_WORDS = {
    "TaxiEnv": _AnyGame(
        about="You drive a taxi: go to the passenger, pick them up, drive to where they want to go, and drop them "
        "off there. Rows and columns count from 0 at the top left. | is a wall between two columns, : is open; R, G, Y "
        "and B are the stops.",
        actions=("South", "North", "East", "West", "Pick up", "Drop off"),
        worst=-10.0,
        told=_taxi,
    ),
    "CliffWalkingEnv": _AnyGame(
        about="You walk along a cliff: reach the target T without stepping off. Who steps off is put back to the "
        "start, and pays much more than for a step.\nSymbols: x you, o ground, C cliff, T target.",
        actions=("Up", "Right", "Down", "Left"),
        worst=-100.0,
        is_won=lambda paid: True,
    ),
    "BlackjackEnv": _AnyGame(
        about="You play Blackjack: get closer to 21 than the dealer without going over. Face cards count 10, an ace 11 "
        "or 1. Stick to let the dealer play, hit for another card.",
        actions=("Stick", "Hit"),
        told=_blackjack,
    ),
    "FrozenLakeEnv": _AnyGame(
        about="You are crossing a frozen lake: walk to the goal and do not fall into a hole. On slippery ice you may "
        "go to a side.\nSymbols: [ ] around where you are, S start, F ice, H hole, G goal.",
        actions=("Left", "Down", "Right", "Up"),
        worst=0.0,
    ),
}
"""By the name of the game's class."""


def _made(game: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return a game without Gymnasium's limit on its steps.

    The toy text has large tables that nobody writes to: its games are copies of one that share them.

    Raises:
        EnvConfigError: If there is no such game, or it cannot be played by numbered actions.
    """
    try:
        spec = _spec(game)
        if str(spec.entry_point).startswith("gymnasium.envs.toy_text."):
            made = copy(_shared(spec.id, json.dumps(options, sort_keys=True)))
        else:
            made = _new(spec, options)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, AttributeError) as error:
        raise EnvConfigError(f"game={game!r}, game_options={options}: {error}") from error
    space = made.action_space
    if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
        raise EnvConfigError(f"game={game!r}: its actions are {space}, and only numbers from 0 on can have names")
    return made


def _spec(game: str) -> EnvSpec:
    module, _, name = game.rpartition(":")
    if module:
        importlib.import_module(module)
    space, _, bare = name.rpartition("/")
    newest = find_highest_version(space or None, bare)
    return gymnasium.spec(name if newest is None else f"{name}-v{newest}")


@lru_cache(maxsize=64)
def _shared(name: str, options: str) -> gymnasium.Env[Any, Any]:
    return _new(gymnasium.spec(name), json.loads(options)).unwrapped


def _new(spec: EnvSpec, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    made_by = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    modes = getattr(made_by, "metadata", {}).get("render_modes", ())
    mode = {"render_mode": "ansi"} if "ansi" in modes else {}
    return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **mode, **options)
