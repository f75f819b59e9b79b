"""The keys of supervised fine-tuning: rows of files, and which of their columns hold what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.row_steps import RowSteps


class SFTKeys(DemonstrationColumns, RowSteps):
    """The keys of supervised fine-tuning; :class:`roll.config.sft.SFTConfig` adds what they mean together."""

    key_aliases: ClassVar[Mapping[str, str]] = {"sft_train": "actor_train"}
