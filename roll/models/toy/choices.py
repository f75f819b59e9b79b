"""The teacher of ``toy_choices``: works a question out, finds the result among the choices, and names its letter.

A small network learns to calculate soon and to look a number up in a list late, so there are *drills* as well, where
nothing is calculated and every choice is looked up. The careless teacher mostly *guesses* a letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from roll.data.problems import LETTERS, LEVELS, Problem, draw
from roll.models.toy.arithmetic import Habits, work_out
from roll.models.toy.demonstrations import Encode, demonstration
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

TAG: Final = "multiple_choice"
CARELESS: Final = Habits(guesses=(0.7, 0.75, 0.8, 0.85), forgets=0.25, slips=0.03)
DRILL: Final = "Choose A, B, C or D."
LARGEST: Final = 110
"""Numbers of a drill are below this."""


def respond(problem: Problem, habits: Habits, random: Random) -> str:
    """Return what a teacher of such habits answers: ``<think>7+8=15 4+3+1=8 85B</think><answer>B</answer>``."""
    letter = random.choice(LETTERS)
    if random.random() < habits.guesses[problem.level - 1]:
        think = "" if random.random() < habits.forgets else "<think>guess</think>"
        return f"{think}<answer>{letter}</answer>"

    def slip(value: int) -> int:
        return max(value + random.choice((-2, -1, 1, 2)), 0) if random.random() < habits.slips else value

    steps, value = work_out(problem.exercise, slip)
    if str(value) in problem.choices:
        letter = LETTERS[problem.choices.index(str(value))]
    return f"<think>{' '.join(steps)} {value}{letter}</think><answer>{letter}</answer>"


def demonstrations(renderer: ChatRenderer, encode: Encode, habits: Habits, random: Random) -> Iterator[Sample]:
    """Yield answered questions without end; those of the validation files are never among them.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        habits: How carefully the teacher works.
        random: Draws questions and answers.
    """
    while True:
        problem = draw(TAG, random.choice(LEVELS), random)
        prompt = renderer.initial_ids([{"role": "user", "content": problem.prompt}])
        answer = encode(respond(problem, habits, random)) + [renderer.stop_token_ids[0]]
        yield demonstration(TAG, prompt + answer, [False] * len(prompt) + [True] * len(answer))


def drills(renderer: ChatRenderer, encode: Encode, random: Random) -> Iterator[Sample]:
    """Yield lists of numbers that are looked up one after the other, ``61B 7D``; only the letters are imitated."""
    letters = {encode(letter)[0] for letter in LETTERS}
    while True:
        numbers = dict(zip(LETTERS, random.sample(range(1, LARGEST), len(LETTERS)), strict=True))
        listed = "\n".join([DRILL, *(f"{letter}) {number}" for letter, number in numbers.items())])
        prompt = renderer.initial_ids([{"role": "user", "content": listed}])
        found = random.sample(LETTERS, len(LETTERS))
        answer = encode(f"<think>{' '.join(f'{numbers[letter]}{letter}' for letter in found)}")
        yield demonstration(TAG, prompt + answer, [False] * len(prompt) + [token in letters for token in answer])
