"""Countdown: three numbers, put together in their order so that they come to a target.

One puzzle in five is held out (:func:`held_out`), by a rule on its numbers: training files and the toy policy's
demonstrations never have the numbers of the validation files.
"""

from __future__ import annotations

import itertools
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

HELD_OUT_SHARE: Final = 5
"""One puzzle in so many is for validation only."""
LARGEST: Final = 20
"""The largest number that is given."""
PLANS: Final = tuple("".join(pair) for pair in itertools.product("+-*", repeat=2))
"""What may stand between three numbers, in the order of somebody who tries everything."""
_MEANS: Final[Mapping[str, Callable[[int, int], int]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True, slots=True)
class Puzzle:
    """What is to be reached, and with what.

    Attributes:
        numbers: Three of 2 to :data:`LARGEST`.
        target: A positive number that one plan at least comes to.
    """

    numbers: tuple[int, int, int]
    target: int

    @property
    def prompt(self) -> str:
        """What the policy reads."""
        return f"Make {self.target} of {', '.join(map(str, self.numbers))}, in this order."

    def row(self) -> dict[str, Any]:
        """Return the puzzle as a row of a data set, as the verifier ``countdown`` reads it."""
        return {"prompt": self.prompt, "target": self.target, "nums": list(self.numbers), "tag": "countdown"}


def expression(numbers: tuple[int, int, int], plan: str) -> str:
    """Return the numbers with the operators of a plan, ``"3+7*8"``."""
    return f"{numbers[0]}{plan[0]}{numbers[1]}{plan[1]}{numbers[2]}"


def value(numbers: tuple[int, int, int], plan: str) -> int:
    """Return what an expression comes to; products come first."""
    (first, second, third), left, right = numbers, plan[0], plan[1]
    if right == "*" and left != "*":
        return _MEANS[left](first, second * third)
    return _MEANS[right](_MEANS[left](first, second), third)


def held_out(numbers: tuple[int, int, int]) -> bool:
    """Whether these numbers are for validation only."""
    return zlib.crc32(repr(numbers).encode()) % HELD_OUT_SHARE == 0


def draw_puzzle(random: Random, *, validation: bool = False) -> Puzzle:
    """Draw a puzzle with numbers that are held out (``validation``), or with others; every plan is as likely."""
    while True:
        first, second, third = (random.randint(2, LARGEST) for _ in range(3))
        numbers, plan = (first, second, third), random.choice(PLANS)
        target = value(numbers, plan)
        # A larger one is the product of all three: it would need no try.
        if 0 < target <= LARGEST**2 + LARGEST and held_out(numbers) == validation:
            return Puzzle(numbers, target)


def puzzles(count: int, *, seed: int, validation: bool = False) -> list[Puzzle]:
    """Return different puzzles.

    Args:
        count: How many.
        seed: Fixes them.
        validation: Whether they have numbers that are held out, or others.
    """
    random = Random(f"{seed}/countdown/{validation}")
    drawn: dict[Puzzle, None] = {}
    while len(drawn) < count:
        drawn[draw_puzzle(random, validation=validation)] = None
    return list(drawn)
