"""The toy policy: a small Qwen3-architecture model with a byte-level tokenizer, made by this project.

``python -m roll.models.toy.build`` makes it again from nothing; the result is shipped in ``weights/`` (under 4 MB), so
that a first run needs no download.
"""

from pathlib import Path

WEIGHTS_DIRECTORY = Path(__file__).parent / "weights"
