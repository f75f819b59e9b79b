"""roll: reinforcement learning for language-model agents in text environments."""

__version__ = "0.1.0"
