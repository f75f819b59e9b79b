"""The toy policies: small Qwen3-architecture models with byte-level tokenizers, made by this project.

``toy`` plays the built-in games, ``toy_math`` does arithmetic. ``python -m roll.models.toy.build`` makes them again
from nothing; the results are shipped in ``weights/`` and ``weights_math/`` (under 4 MB each), so that a first run needs
no download. ``toy_sokoban`` plays Sokoban only, with a network that can learn to plan
(``python -m roll.models.toy.build_sokoban``, ``weights_sokoban/``). Two go on from there: ``toy_larger_sokoban`` plays
on larger boards with two boxes (``weights_larger_sokoban/``), ``toy_mixed`` does easy sums too (``weights_mixed/``).
``toy_choices`` answers multiple-choice questions (``python -m roll.models.toy.build_choices``, ``weights_choices/``).
``toy_duel`` plays Nim in TextArena's words (``weights_duel/``). ``toy_tools`` asks a calculator and
a search (``weights_tools/``). ``toy_taxi`` drives Gymnasium's Taxi (``weights_taxi/``). ``toy_countdown`` tries with a
calculator what numbers come to (``weights_countdown/``).
"""

from pathlib import Path

WEIGHTS_DIRECTORY = Path(__file__).parent / "weights"
MATH_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_math"
SOKOBAN_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_sokoban"
LARGER_SOKOBAN_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_larger_sokoban"
CHOICES_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_choices"
MIXED_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_mixed"
DUEL_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_duel"
TOOLS_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_tools"
TAXI_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_taxi"
COUNTDOWN_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_countdown"

TOYS = {
    "toy": WEIGHTS_DIRECTORY,
    "toy_math": MATH_WEIGHTS_DIRECTORY,
    "toy_choices": CHOICES_WEIGHTS_DIRECTORY,
    "toy_sokoban": SOKOBAN_WEIGHTS_DIRECTORY,
    "toy_larger_sokoban": LARGER_SOKOBAN_WEIGHTS_DIRECTORY,
    "toy_mixed": MIXED_WEIGHTS_DIRECTORY,
    "toy_duel": DUEL_WEIGHTS_DIRECTORY,
    "toy_tools": TOOLS_WEIGHTS_DIRECTORY,
    "toy_taxi": TAXI_WEIGHTS_DIRECTORY,
    "toy_countdown": COUNTDOWN_WEIGHTS_DIRECTORY,
}
"""Where the shipped policies are, by the name that ``pretrain`` gives them."""


def configuration_of(tag: str) -> str:
    """Return the shipped configuration whose words a toy policy was taught to play a tag with."""
    return {"FrozenLake": "frozen_lake"}.get(tag, "sokoban")
