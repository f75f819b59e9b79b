"""The teacher of ``toy_math``: works generated problems out digit by digit, as far as it bothers to.

The careless teacher *guesses* where it should work a problem out, the more often the harder the problem; some guesses
come without any thinking shown; and its working has *slips*. So the policy starts with a skill that it does not use
where it is needed most. Held-out exercises are never demonstrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from roll.data.problems import CHOICE_QUESTION, GENERATORS, LETTERS, LEVELS, QUESTIONS, Exercise, Problem, draw
from roll.models.toy.demonstrations import Encode, demonstration
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

TAG_SHARES = {"arithmetic": 0.45, "word_problems": 0.3, "multiple_choice": 0.25}
LEVEL_SHARES = (0.35, 0.3, 0.2, 0.15)
"""Relative number of demonstrations by level."""

Slip = Callable[[int], int]
"""Returns the result of a step as it is written down: right, or a little off."""
Steps = tuple[list[str], int]
"""The steps of a calculation, ``"7+8=15"``, and its result."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How carefully a teacher works; every number is a probability.

    Attributes:
        guesses: It answers without working anything out, by level.
        forgets: A guess comes without a ``<think>`` block.
        slips: A step of a working is wrong.
    """

    guesses: tuple[float, ...]
    forgets: float
    slips: float


PERFECT = Habits(guesses=(0.0, 0.0, 0.0, 0.0), forgets=0.0, slips=0.0)
CARELESS = Habits(guesses=(0.25, 0.5, 0.65, 0.75), forgets=0.25, slips=0.03)
MISSES = (-20, -10, -2, -1, 0, 1, 2, 10, 20)
"""How far off a guess is."""


def add(first: int, second: int, slip: Slip) -> Steps:
    """Add column by column, the carry last: ``47 + 38`` is ``7+8=15 4+3+1=8``."""
    steps, result, carry, place = [], 0, 0, 1
    while place <= max(first, second):
        terms = [number // place % 10 for number in (first, second) if number >= place]
        terms += [carry] if carry else []
        total = slip(sum(terms)) if len(terms) > 1 else terms[0]
        if len(terms) > 1:
            steps.append(f"{'+'.join(map(str, terms))}={total}")
        carry, digit = divmod(total, 10)
        result += digit * place
        place *= 10
    return steps, result + carry * place


def subtract(first: int, second: int, slip: Slip) -> Steps:
    """Subtract column by column, the borrow last: ``52 - 38`` is ``12-8=4 5-3-1=1``."""
    first, second = max(first, second), min(first, second)
    steps, result, borrow, place = [], 0, 0, 1
    while place <= first:
        terms = [
            first // place % 10,
            *([second // place % 10] if second >= place else []),
            *([borrow] if borrow else []),
        ]
        borrow = int(terms[0] < sum(terms[1:]))
        terms[0] += 10 * borrow
        rest = terms[0] - sum(terms[1:])
        if len(terms) > 1:
            rest = min(slip(rest), 9)
            steps.append(f"{'-'.join(map(str, terms))}={rest}")
        result += rest * place
        place *= 10
    return steps, result


def multiply(first: int, second: int, slip: Slip) -> Steps:
    """Multiply a number of one or two digits by a digit: ``47 * 6`` is ``7*6=42 4*6=24 24+4=28``."""
    tens, units = divmod(first, 10)
    low = slip(units * second)
    steps = [f"{units}*{second}={low}"]
    if not tens:
        return steps, low
    high = slip(tens * second)
    steps.append(f"{tens}*{second}={high}")
    carry, digit = divmod(low, 10)
    if carry:
        total = slip(high + carry)
        steps.append(f"{high}+{carry}={total}")
        high = total
    return steps, high * 10 + digit


METHODS = {"+": add, "-": subtract, "*": multiply}


def work_out(exercise: Exercise, slip: Slip = int) -> Steps:
    """Return the written steps of an exercise, and what they come to."""
    steps: list[str] = []
    value = exercise.numbers[0]
    for operator, number in zip(exercise.operators, exercise.numbers[1:], strict=True):
        more, value = METHODS[operator](value, number, slip)
        steps += more
    return steps, value


def respond(problem: Problem, habits: Habits, random: Random) -> str:
    """Return what a teacher of such habits answers: ``<think>7+8=15 4+3+1=8</think><answer>85</answer>``."""

    def slip(value: int) -> int:
        return max(value + random.choice((-2, -1, 1, 2)), 0) if random.random() < habits.slips else value

    if random.random() < habits.guesses[problem.level - 1]:
        value = max(problem.exercise.answer + random.choice(MISSES), 0)
        think = "" if random.random() < habits.forgets else "<think>guess</think>"
    else:
        steps, value = work_out(problem.exercise, slip)
        # What a bare exercise says already is written down only where it has to be found in a text.
        read = [problem.exercise.expression.replace(" ", "") + ":"] if problem.tag == "word_problems" else []
        compared = [str(value), *_compare(problem, value)] if problem.choices else []
        think = f"<think>{' '.join([*read, *steps, *compared])}</think>"
    return f"{think}<answer>{_answer(problem, value, random)}</answer>"


def _compare(problem: Problem, value: int) -> Iterator[str]:
    """Yield the choices in order, ``A84 B85``, up to the one that is ``value``."""
    for letter, choice in zip(LETTERS, problem.choices, strict=True):
        yield letter + choice
        if choice == str(value):
            return


def _answer(problem: Problem, value: int, random: Random) -> str:
    if not problem.choices:
        return str(value)
    return LETTERS[problem.choices.index(str(value))] if str(value) in problem.choices else random.choice(LETTERS)


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: problems, answers, and the words of their templates."""
    random = Random("corpus")
    words = "system user assistant think answer guess What Compute Calculate How".split()
    yield from ["\n".join(words), " ".join(words), *QUESTIONS, CHOICE_QUESTION] * 20
    for tag in GENERATORS:
        for index in range(400):
            problem = draw(tag, LEVELS[index % len(LEVELS)], random)
            yield problem.prompt
            yield respond(problem, PERFECT, random)


def demonstrations(renderer: ChatRenderer, encode: Encode, habits: Habits, *, seed: int) -> Iterator[Sample]:
    """Yield answered problems without end.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises an answer.
        habits: How carefully the teacher works.
        seed: Fixes everything.
    """
    random = Random(f"{seed}/demonstrations")
    while True:
        tag = random.choices(list(TAG_SHARES), list(TAG_SHARES.values()))[0]
        problem = draw(tag, random.choices(LEVELS, LEVEL_SHARES)[0], random)
        prompt = renderer.initial_ids([{"role": "user", "content": problem.prompt}])
        answer = encode(respond(problem, habits, random)) + [renderer.stop_token_ids[0]]
        yield demonstration(tag, prompt + answer, [False] * len(prompt) + [True] * len(answer))


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the answers of the perfect and of the careless teacher, each without end."""
    return (
        demonstrations(renderer, encode, PERFECT, seed=seed),
        demonstrations(renderer, encode, CARELESS, seed=seed + 1),
    )
