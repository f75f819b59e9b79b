"""Prompt data sets: files to prompts, in an order that is a pure function of how many were consumed."""

from roll.data.dataset import PromptDataset
from roll.data.errors import DataError
from roll.data.lengths import LengthLimit
from roll.data.loading import load_prompts, load_table
from roll.data.prompts import Prompt, PromptSource
from roll.data.table import PromptTable

__all__ = [
    "DataError",
    "LengthLimit",
    "Prompt",
    "PromptDataset",
    "PromptSource",
    "PromptTable",
    "load_prompts",
    "load_table",
]
