"""Trinity-RFT: ``algorithm`` with its ``algorithm_type``, ``model``, ``buffer``, ``trainer`` and the other sections."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.rows import Guide
from roll.config.dialects.trinity.algorithm import ALGORITHM_ROWS
from roll.config.dialects.trinity.buffer import BUFFER_ROWS
from roll.config.dialects.trinity.explorer import EXPLORER_ROWS
from roll.config.dialects.trinity.model import MODEL_ROWS
from roll.config.dialects.trinity.run import RUN_ROWS
from roll.config.dialects.trinity.stores import STORE_ROWS
from roll.config.dialects.trinity.trainer import TRAINER_ROWS
from roll.config.dialects.verl import VERL

TRINITY: Final = Guide(
    "Trinity-RFT",
    (*ALGORITHM_ROWS, *MODEL_ROWS, *BUFFER_ROWS, *STORE_ROWS, *TRAINER_ROWS, *EXPLORER_ROWS, *RUN_ROWS),
    inside={"trainer.trainer_config": VERL},
    dtype="bf16",
)
"""The Trinity-RFT configuration guide; what is handed on to its trainer is written in verl's keys."""
