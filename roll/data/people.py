"""Made-up people, facts about them, and questions that only a collection of such facts answers.

One person in five is held out (:func:`held_out`), by a rule on the name: training questions and the toy policy's
demonstrations never ask for whom the validation questions ask.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from random import Random
from typing import Any, Final

HELD_OUT_SHARE: Final = 5
"""One person in so many is for validation only."""

GIVEN: Final = (
    *("Ada", "Bela", "Cora", "Dario", "Edda", "Finn", "Gita", "Hale", "Ines", "Jona", "Kira", "Levi"),
    *("Mira", "Nilo", "Olga", "Piet", "Rosa", "Sami", "Tara", "Ugo", "Vera", "Wim", "Yara", "Zeno"),
)
JOBS: Final = (
    *("baker", "carpenter", "dancer", "farmer", "gardener", "judge", "miner", "nurse"),
    *("painter", "pilot", "potter", "sailor", "singer", "tailor", "teacher", "weaver"),
)
_BEGINNINGS: Final = ("Bar", "Dol", "Fen", "Gor", "Hal", "Kel", "Lim", "Mor", "Nar", "Pel", "Ral", "Sol", "Tor", "Var")
FAMILY: Final = tuple(first + second for first, second in itertools.product(_BEGINNINGS, ("by", "den", "ik", "low")))
TOWNS: Final = tuple(first + second for first, second in itertools.product(_BEGINNINGS, ("ana", "emo", "ista", "uro")))
"""Words that were made for this; towns and families have beginnings in common."""

QUESTIONS: Final = {
    "town": ("Where does {name} come from?", "From which town is {name}?", "Which town does {name} come from?"),
    "job": ("What does {name} work as?", "Which job does {name} have?"),
}
"""How a fact is asked for."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who does not exist.

    Attributes:
        name: Given name and family name.
        town: Where they come from.
        job: What they work as.
    """

    name: str
    town: str
    job: str

    @property
    def told(self) -> str:
        """The facts as a passage of a collection."""
        return f"{self.name} comes from {self.town} and works as a {self.job}."


@dataclass(frozen=True, slots=True)
class Question:
    """A question about somebody.

    Attributes:
        prompt: What the policy reads.
        ground_truth: The only right answer, a word.
        person: Whom it is about.
    """

    prompt: str
    ground_truth: str
    person: Person

    def row(self) -> dict[str, Any]:
        """Return the question as a row of a data set."""
        return {"prompt": self.prompt, "ground_truth": self.ground_truth, "tag": "people"}


def held_out(name: str) -> bool:
    """Whether a person is asked for in validation only."""
    return zlib.crc32(name.encode()) % HELD_OUT_SHARE == 0


def draw_person(random: Random, name: str | None = None) -> Person:
    """Draw a person, of any name or of the one given."""
    drawn = name or f"{random.choice(GIVEN)} {random.choice(FAMILY)}"
    return Person(drawn, random.choice(TOWNS), random.choice(JOBS))


def ask(person: Person, random: Random) -> Question:
    """Ask for one of the facts about a person."""
    kind = random.choice(tuple(QUESTIONS))
    prompt = random.choice(QUESTIONS[kind]).format(name=person.name)
    return Question(prompt, person.town if kind == "town" else person.job, person)


def everybody(count: int, *, seed: int) -> list[Person]:
    """Return people of different names.

    Args:
        count: How many.
        seed: Fixes them.

    Raises:
        ValueError: There are not so many names.
    """
    names = [f"{given} {family}" for given in GIVEN for family in FAMILY]
    if count > len(names):
        raise ValueError(f"count={count}: there are {len(names)} names")
    random = Random(f"{seed}/people")
    return [draw_person(random, name) for name in random.sample(names, count)]


def questions(people: list[Person], count: int, *, seed: int, validation: bool = False) -> list[Question]:
    """Return questions about those people who are held out (``validation``), or about the others.

    Args:
        people: Who is known.
        count: How many questions.
        seed: Fixes them.
        validation: For whom to ask.
    """
    random = Random(f"{seed}/questions/{validation}")
    asked_for = [person for person in people if held_out(person.name) == validation]
    return [ask(asked_for[number % len(asked_for)], random) for number in range(count)]
