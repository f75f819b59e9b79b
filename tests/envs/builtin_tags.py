"""The tags that come with the package; other tests may have registered more in this process."""

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

PLAIN_TAGS = [tag for tag in BUILTIN_TAGS if tag not in ("MultipleChoice", "ColossalCave", "TextWorldHouse")]
"""Those that are stepped without waiting: not by a verifier that is awaited, nor by a program of their own."""
