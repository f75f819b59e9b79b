"""The tags that come with the package; other tests may have registered more in this process."""

BUILTIN_TAGS = [
    "SimpleSokoban",
    "LargerSokoban",
    "SokobanDifferentGridVocab",
    "FrozenLake",
    "FrozenLakeThink",
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
    "BabyAIGoTo",
    "BabyAIPickUp",
    "MiniGridEmpty",
]
