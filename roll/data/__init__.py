"""Prompt data sets: files to prompts, in an order that is a pure function of how many were consumed."""

from roll.data.dataset import PromptDataset
from roll.data.errors import DataError
from roll.data.loading import load_prompts, validation_prompts
from roll.data.prompts import Prompt, PromptSource
from roll.data.table import PromptTable

__all__ = [
    "DataError",
    "Prompt",
    "PromptDataset",
    "PromptSource",
    "PromptTable",
    "load_prompts",
    "validation_prompts",
]
