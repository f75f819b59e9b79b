"""The teacher of ``toy``: a solver that plays the built-in games.

Demonstrations are built with the same renderer, templates and environments as in reinforcement learning, so the policy
starts with exactly the token sequences it will meet. Some actions are random: the policy then also sees boards that a
perfect player never reaches. Whether it imitates those actions too is the choice between a perfect and a careless
teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from roll.envs import make
from roll.envs.base import TextEnv
from roll.envs.frozen_lake import FrozenLakeEnv, shortest_path
from roll.envs.sokoban import SokobanEnv
from roll.envs.sokoban_solver import solve
from roll.models.toy.demonstrations import Encode, demonstration
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

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
        answer: A response; holds ``{action}``.
    """

    tag: str
    share: float
    system: str
    user: str = "{observation}"
    answer: str = "<answer>{action}</answer>"


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


COURSES = (
    Course("SimpleSokoban", 0.85, "Solve the Sokoban puzzle."),
    Course("FrozenLake", 0.15, "Cross the frozen lake."),
)
NOISE = 0.15
"""Random actions in the games of the perfect teacher; not imitated, they only vary the boards."""
CARELESSNESS = 0.5
"""Random actions in the games of the careless teacher; imitated."""

SOLVERS: dict[type[TextEnv], Solver] = {SokobanEnv: sokoban_action, FrozenLakeEnv: frozen_lake_action}


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: instructions, prompts and boards of every built-in tag."""
    words = (
        "system user assistant think answer Up Down Left Right Turn actions left tokens Solve the puzzle reward".split()
    )
    for course in COURSES:
        env = make(course.tag)
        for seed in range(50):
            yield env.reset(seed=seed)[0]
        # On lines of their own, as roles and answers stand in a conversation, and after a space, as in prose.
        yield from ["\n".join(words), " ".join(words), env.instruction, course.system] * 20


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the games of the perfect and of the careless teacher, each without end."""
    teach = partial(demonstrations, lessons(), renderer, encode)
    return teach(seed=seed, noise=NOISE), teach(seed=seed + 1, noise=CARELESSNESS, imitate_noise=True)


def lessons(courses: Sequence[Course] = COURSES) -> list[tuple[Course, TextEnv, Solver]]:
    """Return courses with environments of their own, and with who solves each kind of game."""
    envs = [make(course.tag) for course in courses]
    return [(course, env, SOLVERS[type(env)]) for course, env in zip(courses, envs, strict=True)]


def demonstrations(
    lessons: Sequence[tuple[Course, TextEnv, Solver]],
    renderer: ChatRenderer,
    encode: Encode,
    *,
    seed: int,
    noise: float,
    imitate_noise: bool = False,
) -> Iterator[Sample]:
    """Yield demonstrations without end.

    Args:
        lessons: What to demonstrate, drawn by their shares, in which environment, and who plays.
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        seed: Fixes everything.
        noise: Probability that an action is random.
        imitate_noise: Whether random actions are trained on as well.
    """
    random = np.random.default_rng(seed)
    shares = np.array([course.share for course, _, _ in lessons])
    while True:
        course, env, solver = lessons[int(random.choice(len(lessons), p=shares / shares.sum()))]
        game = _play(course, env, solver, renderer, encode, random, noise, imitate_noise)
        if any(game.response_mask):
            yield game


def _play(
    course: Course,
    env: TextEnv,
    solver: Solver,
    renderer: ChatRenderer,
    encode: Encode,
    random: np.random.Generator,
    noise: float,
    imitate_noise: bool,
) -> Sample:
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
        response = course.answer.replace("{action}", action)
        answer = encode(response) + [renderer.stop_token_ids[0]]
        tokens += answer
        trained += [imitate_noise or not is_noise] * len(answer)
        observation, _, terminated, truncated, _ = env.step(response)
        if terminated or truncated:
            break
        bridge = renderer.next_ids(
            answer, [{"role": "user", "content": course.user.replace("{observation}", observation)}]
        )
        assert bridge is not None, "the toy template extends its history"
        tokens += bridge
        trained += [False] * len(bridge)
    return demonstration(course.tag, tokens, trained)
