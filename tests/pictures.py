"""Pictures for tests, encoded."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

SIDE = 16
"""Pixels of the side of a picture that is one token of the tiny models that see."""


def png(rows: int, columns: int, seed: int = 0) -> bytes:
    """Return a picture of ``rows`` x ``columns`` tokens, of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 255, (rows * SIDE, columns * SIDE, 3), dtype=np.uint8)
    return encoded(pixels)


def encoded(pixels: np.ndarray) -> bytes:
    """Return ``uint8 [height, width, 3]`` as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
