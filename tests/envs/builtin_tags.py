"""The tags that come with the package; other tests may have registered more in this process."""

from importlib.util import find_spec

BUILTIN_TAGS = [
    "SimpleSokoban",
    "LargerSokoban",
    "Boxoban",
    "SokobanDifferentGridVocab",
    "FrozenLake",
    "FrozenLakeThink",
    "MultipleChoice",
    "Debate",
    "Taxi",
    "CliffWalking",
    "Blackjack",
    "Countdown",
    "ChainSum",
    "MiniSudoku",
    "KnightsAndKnaves",
    "GuessTheNumber",
    "TowerOfHanoi",
    "Mastermind",
    "TicTacToe",
    "TextWorldHouse",
    "ColossalCave",
    "BabyAIGoTo",
    "BabyAIPickUp",
    "MiniGridEmpty",
]

_PUZZLES = ("Countdown", "ChainSum", "MiniSudoku", "KnightsAndKnaves")
_MISSING = () if find_spec("reasoning_gym") else _PUZZLES
PLAIN_TAGS = [tag for tag in BUILTIN_TAGS if tag not in ("MultipleChoice", "ColossalCave", "TextWorldHouse", *_MISSING)]
"""Those that are stepped without waiting: not by a verifier that is awaited, nor by a program of their own.

Without those of reasoning_gym where it is not installed, as under a Python that a part of it has no package for."""
