"""Generated arithmetic with exact answers: bare, as word problems and as multiple choice, in four levels.

Every problem poses an :class:`Exercise`. One exercise in eight is held out (:func:`held_out`), by a rule and not by a
list: training files, the toy policy's demonstrations and validation files never share an exercise, whatever the seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

LEVELS: Final = (1, 2, 3, 4)
SMALL: Final = 0
"""The level below them, for models that have not been taught to calculate."""
LARGE: Final = 5
"""The level above them, for models that have a calculator."""
HELD_OUT_SHARE: Final = 8
"""One exercise in so many is for validation only."""
LETTERS: Final = "ABCD"
_IN_VAIN: Final = 20_000
"""So many draws without a new exercise mean that there is none."""

QUESTIONS: Final = (
    "What is {expression}?",
    "Compute {expression}.",
    "Calculate {expression}.",
    "How much is {expression}?",
    "{expression} = ?",
)
CHOICE_QUESTION: Final = "What is {expression}? Choose A, B, C or D."
NAMES: Final = ("Ann", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo")
THINGS: Final = ("apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stamps")
STORIES: Final = {
    "+": (
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        "There are {a} {things} in one box and {b} in another. How many {things} are there in all?",
        "{name} has {a} {things} and {other} has {b}. How many {things} do they have together?",
    ),
    "-": (
        "{name} has {a} {things} and gives {b} to {other}. How many {things} does {name} have left?",
        "There are {a} {things} in a box. {name} takes {b} out. How many {things} stay in the box?",
        "{name} has {a} {things} and {other} has {b}. How many more {things} does {name} have?",
    ),
    "*": (
        "A box holds {a} {things}. How many {things} do {b} boxes hold?",
        "{name} collects {a} {things} a day. How many {things} does {name} collect in {b} days?",
        "There are {a} {things} on a table. How many {things} are there on {b} such tables?",
    ),
    "*+": (
        "{name} buys {a} boxes with {b} {things} each and gets {c} more. How many {things} does {name} have now?",
        "There are {a} tables with {b} {things} each and {c} {things} on the floor. How many {things} are there?",
    ),
    "*-": (
        "{name} buys {a} boxes with {b} {things} each and gives {c} away. How many {things} does {name} have left?",
        "There are {a} tables with {b} {things} each. {name} takes {c} away. How many {things} stay on the tables?",
    ),
}
"""Stories by the operators they ask for."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A calculation from left to right; a product stands only at its beginning, so precedence changes nothing.

    Attributes:
        numbers: Two or three natural numbers.
        operators: ``+``, ``-`` or ``*``, one between each two numbers.
    """

    numbers: tuple[int, ...]
    operators: str

    @property
    def expression(self) -> str:
        """The exercise as it is printed, ``"6 * 7 + 35"``."""
        pairs = zip(self.operators, self.numbers[1:], strict=True)
        return " ".join([str(self.numbers[0]), *(f"{operator} {number}" for operator, number in pairs)])

    @property
    def answer(self) -> int:
        """Its exact value."""
        value = self.numbers[0]
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            value = value + number if operator == "+" else value - number if operator == "-" else value * number
        return value


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem as text.

    Attributes:
        prompt: What the policy reads.
        ground_truth: The only right answer: a number, or the letter of a choice.
        tag: The generator it comes from, a key of :data:`GENERATORS`.
        level: 0 (easy) to 5.
        exercise: What has to be calculated.
        choices: The numbers behind the letters ``A``, ``B``, …; empty where there are none.
    """

    prompt: str
    ground_truth: str
    tag: str
    level: int
    exercise: Exercise
    choices: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return the problem as a row of a data set: ``prompt``, ``ground_truth``, ``tag``, ``level`` (``choices``)."""
        row = {"prompt": self.prompt, "ground_truth": self.ground_truth, "tag": self.tag, "level": self.level}
        return {**row, "choices": list(self.choices)} if self.choices else row


def make_exercise(level: int, random: Random) -> Exercise:
    """Draw an exercise; no intermediate value or answer is negative.

    Args:
        level: 0: a number up to 30 plus or minus a digit. 1: a two-digit number plus or minus a digit. 2: sums and
            differences of two-digit numbers. 3: a product of two digits plus or minus a two-digit number. 4: a
            two-digit number times a digit. 5: a three-digit number times a two-digit one, and perhaps another plus or
            minus.
        random: Where randomness comes from.

    Raises:
        ValueError: If there is no such level.
    """
    if level == SMALL:
        first, second, operator = random.randint(2, 30), random.randint(2, 9), random.choice("+-")
        return Exercise((first, second) if operator == "+" else (max(first, second), min(first, second)), operator)
    if level == 1:
        return Exercise((random.randint(10, 99), random.randint(2, 9)), random.choice("+-"))
    if level == 2:
        numbers = (random.randint(11, 99), random.randint(11, 99))
        operator = random.choice("+-")
        return Exercise(numbers if operator == "+" else (max(numbers), min(numbers)), operator)
    if level == 3:
        first, second = random.randint(2, 9), random.randint(2, 9)
        product = first * second
        if product > 11 and random.random() < 0.5:
            return Exercise((first, second, random.randint(11, product)), "*-")
        return Exercise((first, second, random.randint(11, 99)), "*+")
    if level == 4:
        return Exercise((random.randint(11, 99), random.randint(2, 9)), "*")
    if level == LARGE:
        factors, third = (random.randint(101, 999), random.randint(11, 99)), random.randint(101, 999)
        operators = random.choice(("*", "*+", "*-"))
        return Exercise(factors if operators == "*" else (*factors, third), operators)
    raise ValueError(f"level={level!r}: use one of {', '.join(map(str, (SMALL, *LEVELS, LARGE)))}")


def held_out(exercise: Exercise) -> bool:
    """Whether the exercise is for validation only; the same for ``3 + 4`` and ``4 + 3``."""
    numbers = list(exercise.numbers)
    if exercise.operators[0] in "+*":
        numbers[:2] = sorted(numbers[:2])
    return zlib.crc32(f"{exercise.operators} {numbers}".encode()) % HELD_OUT_SHARE == 0


def arithmetic(level: int, random: Random) -> Problem:
    """Pose an exercise as it is: ``What is 47 + 38?``."""
    exercise = make_exercise(level, random)
    prompt = random.choice(QUESTIONS).format(expression=exercise.expression)
    return Problem(prompt, str(exercise.answer), "arithmetic", level, exercise)


def plainly(problem: Problem) -> Problem:
    """Pose a problem's exercise in the shortest way, always the same: ``47 + 8 = ?``."""
    return replace(problem, prompt=f"{problem.exercise.expression} = ?")


def word_problem(level: int, random: Random) -> Problem:
    """Pose an exercise as a short story that states its numbers in order."""
    exercise = make_exercise(level, random)
    name, other = random.sample(NAMES, 2)
    prompt = random.choice(STORIES[exercise.operators]).format(
        name=name, other=other, things=random.choice(THINGS), **dict(zip("abc", exercise.numbers, strict=False))
    )
    return Problem(prompt, str(exercise.answer), "word_problems", level, exercise)


def multiple_choice(level: int, random: Random) -> Problem:
    """Pose an exercise with four numbers to choose from; the wrong ones are near misses. The answer is a letter."""
    exercise = make_exercise(level, random)
    answer = exercise.answer
    misses = [answer + offset for offset in (-11, -10, -9, -2, -1, 1, 2, 9, 10, 11) if answer + offset >= 0]
    values = [answer, *random.sample(misses, len(LETTERS) - 1)]
    random.shuffle(values)
    lines = [f"{letter}) {value}" for letter, value in zip(LETTERS, values, strict=True)]
    return Problem(
        prompt="\n".join([CHOICE_QUESTION.format(expression=exercise.expression), *lines]),
        ground_truth=LETTERS[values.index(answer)],
        tag="multiple_choice",
        level=level,
        exercise=exercise,
        choices=tuple(map(str, values)),
    )


Generator = Callable[[int, Random], Problem]
GENERATORS: Final[dict[str, Generator]] = {
    "arithmetic": arithmetic,
    "word_problems": word_problem,
    "multiple_choice": multiple_choice,
}
"""Generators by the tag of their problems."""


def draw(tag: str, level: int, random: Random, *, validation: bool = False) -> Problem:
    """Draw a problem whose exercise is held out (``validation``), or one whose exercise is not."""
    while True:
        problem = GENERATORS[tag](level, random)
        if held_out(problem.exercise) == validation:
            return problem


def problem_set(
    tag: str, count: int, *, seed: int, validation: bool = False, levels: Sequence[int] = LEVELS
) -> list[Problem]:
    """Return ``count`` problems on different exercises, the levels in turn.

    Args:
        tag: A key of :data:`GENERATORS`.
        count: How many; a level has several hundred different ones at least (fifty of those held out).
        seed: Fixes the problems.
        validation: Whether to pose the exercises that are held out, or the others.
        levels: Which levels.

    Raises:
        ValueError: A level has not so many.
    """
    random = Random(f"{seed}/{tag}/{validation}")
    seen: set[Exercise] = set()
    problems: list[Problem] = []
    while len(problems) < count:
        level = levels[len(problems) % len(levels)]
        for _ in range(_IN_VAIN):
            problem = draw(tag, level, random, validation=validation)
            if problem.exercise not in seen:
                break
        else:
            raise ValueError(
                f"level {level} of {tag} has no exercise that is not among the first {len(problems)}: ask for fewer"
            )
        seen.add(problem.exercise)
        problems.append(problem)
    return problems
