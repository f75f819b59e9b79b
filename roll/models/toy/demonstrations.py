"""Conversations in which a solver plays, as training samples for the toy policy's start.

Built with the same renderer, templates and environments as in reinforcement learning, so the policy starts with exactly
the token sequences it will meet. Some actions are random: the policy then also sees boards that a perfect player never
reaches. Whether it imitates those actions too is the choice between a perfect and a careless teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from roll.envs import make
from roll.envs.base import TextEnv
from roll.envs.frozen_lake import FrozenLakeEnv, shortest_path
from roll.envs.sokoban import SokobanEnv
from roll.envs.sokoban_solver import solve
from roll.rendering.chat import ChatRenderer

FROZEN_LAKE_ACTIONS = ("Left", "Down", "Right", "Up")

Solver = Callable[[TextEnv], str | None]
"""Returns the next action of a shortest solution, or ``None`` when none is known."""


@dataclass(frozen=True, slots=True)
class Course:
    """What to demonstrate on one tag.

    Attributes:
        tag: Environment tag.
        share: Relative number of demonstrations.
        system: System message; may hold ``{instruction}``.
        user: User message of every turn; may hold ``{observation}``.
    """

    tag: str
    share: float
    system: str
    user: str = "{observation}"


def sokoban_action(env: TextEnv) -> str | None:
    """Return the first action of a shortest solution of a Sokoban position."""
    assert isinstance(env, SokobanEnv)
    actions = solve(env.state(), max_nodes=20_000)
    return actions[0] if actions else None


def frozen_lake_action(env: TextEnv) -> str | None:
    """Return the first action of a shortest path on a FrozenLake map (slipping not considered)."""
    assert isinstance(env, FrozenLakeEnv)
    path = shortest_path(env.lake, env.position)
    return FROZEN_LAKE_ACTIONS[path[0]] if path else None


SOLVERS: dict[type[TextEnv], Solver] = {SokobanEnv: sokoban_action, FrozenLakeEnv: frozen_lake_action}


@dataclass(slots=True)
class Demonstration:
    """One episode: token ids and which of them the solver chose."""

    token_ids: list[int]
    trained: list[bool]


def demonstrations(
    courses: Sequence[Course],
    renderer: ChatRenderer,
    encode: Callable[[str], list[int]],
    *,
    seed: int,
    noise: float,
    imitate_noise: bool = False,
) -> Iterator[Demonstration]:
    """Yield demonstrations without end.

    Args:
        courses: What to demonstrate, drawn by their shares.
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        seed: Fixes everything.
        noise: Probability that an action is random.
        imitate_noise: Whether random actions are trained on as well.
    """
    random = np.random.default_rng(seed)
    shares = np.array([course.share for course in courses])
    envs = [make(course.tag) for course in courses]
    while True:
        choice = int(random.choice(len(courses), p=shares / shares.sum()))
        demonstration = _play(courses[choice], envs[choice], renderer, encode, random, noise, imitate_noise)
        if any(demonstration.trained):
            yield demonstration


def _play(
    course: Course,
    env: TextEnv,
    renderer: ChatRenderer,
    encode: Callable[[str], list[int]],
    random: np.random.Generator,
    noise: float,
    imitate_noise: bool,
) -> Demonstration:
    solver = SOLVERS[type(env)]
    observation, _ = env.reset(seed=int(random.integers(2**62)))
    messages = [
        {"role": "system", "content": course.system.replace("{instruction}", env.instruction)},
        {"role": "user", "content": course.user.replace("{observation}", observation)},
    ]
    tokens = renderer.initial_ids(messages)
    trained = [False] * len(tokens)
    while True:
        action = solver(env)
        if action is None:
            break
        is_noise = random.random() < noise
        if is_noise:
            action = str(random.choice(np.array(env.actions)))
        answer = encode(f"<answer>{action}</answer>") + [renderer.stop_token_ids[0]]
        tokens += answer
        trained += [imitate_noise or not is_noise] * len(answer)
        observation, _, terminated, truncated, _ = env.step(f"<answer>{action}</answer>")
        if terminated or truncated:
            break
        bridge = renderer.next_ids(
            answer, [{"role": "user", "content": course.user.replace("{observation}", observation)}]
        )
        assert bridge is not None, "the toy template extends its history"
        tokens += bridge
        trained += [False] * len(bridge)
    return Demonstration(tokens, trained)
