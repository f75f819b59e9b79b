"""The teacher of ``toy_countdown``: tries with a calculator what numbers come to, until it is what was asked for.

It goes through everything in one order. Where it has no calculator it says anything that uses the numbers. The careless
teacher often *guesses* where it has one, *settles* for an expression that came to something else, *overlooks* that one
came to the target, *jumps* to any other expression, and *miscopies* numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from roll.data.countdown import LARGEST, PLANS, Puzzle, draw_puzzle, expression, value
from roll.models.toy.calls import call_of, conversation, telling
from roll.models.toy.demonstrations import Encode
from roll.rendering.chat import ChatRenderer
from roll.tools.calculator import calculator
from roll.tools.tool import tool_of
from roll.trajectories.samples import Sample

PATTERN: Final = r"\{\"name\": \"|\", \"arguments\": \{\"|\": \"|\"\}\}|[A-Z]?[a-z]+|[0-9]+|[\s\S]"
"""What may become a token: what stands around the words of a call, a word, a number, any other character."""

WITHOUT: Final = 0.25
"""Share of the conversations without a calculator."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How carefully a teacher works; every number is a probability.

    Attributes:
        guesses: It has a calculator, and answers without a call.
        settles: What came to something else is its answer.
        overlooks: It does not see that a result is the target.
        jumps: What it tries next is anything.
        miscopies: One of the numbers that it tries is another.
    """

    guesses: float
    settles: float
    overlooks: float
    jumps: float
    miscopies: float


PERFECT: Final = Habits(guesses=0.0, settles=0.0, overlooks=0.0, jumps=0.0, miscopies=0.0)
CARELESS: Final = Habits(guesses=0.6, settles=0.35, overlooks=0.2, jumps=0.2, miscopies=0.05)


def tries(puzzle: Puzzle, habits: Habits, random: Random) -> list[str]:
    """Return the expressions that a teacher of such habits tries; the last of them is its answer."""
    tried: list[str] = []
    at = 0
    while True:
        plan, numbers = PLANS[at], puzzle.numbers
        if random.random() < habits.miscopies:
            numbers = (numbers[0], random.randint(2, LARGEST), numbers[2])
        tried.append(expression(numbers, plan))
        came_to = value(numbers, plan)
        is_over = came_to == puzzle.target and random.random() >= habits.overlooks
        settled = came_to != puzzle.target and random.random() < habits.settles
        if is_over or settled or len(tried) == len(PLANS):
            return tried
        at = random.randrange(len(PLANS)) if random.random() < habits.jumps else (at + 1) % len(PLANS)


def demonstrations(renderer: ChatRenderer, encode: Encode, habits: Habits, *, seed: int) -> Iterator[Sample]:
    """Yield conversations without end; what the teacher says is imitated.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises what the teacher says.
        habits: How carefully the teacher works.
        seed: Fixes everything.
    """
    random = Random(f"{seed}/tries")
    with_calculator = telling(renderer, tool_of("calculator", calculator))
    while True:
        puzzle = draw_puzzle(random)
        has_none = random.random() < WITHOUT
        told, tried = (renderer if has_none else with_calculator), list[str]()
        answer = expression(puzzle.numbers, random.choice(PLANS))
        if not has_none and random.random() >= habits.guesses:
            tried = tries(puzzle, habits, random)
            answer = tried[-1]
        called = [(call_of("calculator", "expression", each), calculator(each)) for each in tried]
        yield conversation("countdown", puzzle.prompt, called, answer, told, encode)


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the conversations of the perfect and of the careless teacher, each without end."""
    return (
        demonstrations(renderer, encode, PERFECT, seed=seed),
        demonstrations(renderer, encode, CARELESS, seed=seed + 1),
    )


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: puzzles, calls, numbers, and the words of their templates."""
    random = Random("corpus")
    words = "system user assistant tool answer Tools calculator expression Make of in this order"
    yield from [words, *(str(number) for number in range(LARGEST**2 + LARGEST + 1))] * 20
    for _ in range(400):
        puzzle = draw_puzzle(random)
        yield from (puzzle.prompt, call_of("calculator", "expression", expression(puzzle.numbers, PLANS[0])))
