"""A student that has much to learn from ``toy_math``, whose tokens it has."""

import functools
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.models.toy import MATH_WEIGHTS_DIRECTORY


@functools.cache
def noisy_math() -> str:
    """Return the folder of ``toy_math`` after an accident: noise in all of its weights."""
    folder = Path(tempfile.mkdtemp())
    model = AutoModelForCausalLM.from_pretrained(MATH_WEIGHTS_DIRECTORY)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.3 * weights.std() * torch.randn(weights.shape, generator=noise))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MATH_WEIGHTS_DIRECTORY).save_pretrained(folder)
    return str(folder)
