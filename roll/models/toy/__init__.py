"""The toy policies: small Qwen3-architecture models with byte-level tokenizers, made by this project.

``toy`` plays the built-in games, ``toy_math`` does arithmetic. ``python -m roll.models.toy.build`` makes them again
from nothing; the results are shipped in ``weights/`` and ``weights_math/`` (under 4 MB each), so that a first run needs
no download.
"""

from pathlib import Path

WEIGHTS_DIRECTORY = Path(__file__).parent / "weights"
MATH_WEIGHTS_DIRECTORY = Path(__file__).parent / "weights_math"

TOYS = {"toy": WEIGHTS_DIRECTORY, "toy_math": MATH_WEIGHTS_DIRECTORY}
"""Where the shipped policies are, by the name that ``pretrain`` gives them."""
