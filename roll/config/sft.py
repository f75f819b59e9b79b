"""The configuration of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roll.config.errors import Problem
from roll.config.sft_keys import SFTKeys

_COLUMNS: Final = {"prompt": "prompt_key", "messages": "messages_key"}
"""What says which column holds something, where prompts are answered, and here."""


class SFTConfig(SFTKeys):
    """Everything that ``examples/start_sft_pipeline.py`` reads."""

    program = "examples/start_sft_pipeline.py"

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from self.unread_columns(_COLUMNS)
        yield from self.column_problems()
