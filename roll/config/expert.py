"""The keys of experts: files with what they wrote, and how much of it an optimiser step learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Final, Literal

from pydantic import Field

from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.errors import Problem
from roll.config.worker import DataArgs

_COLUMNS: Final = {"prompt": "prompt_key", "messages": "messages_key"}
"""What says which column holds something, where prompts are answered, and here."""


class ExpertConfig(DemonstrationColumns):
    """What experts wrote, to learn from beside what the policy samples."""

    data_args: DataArgs = Field(
        default_factory=DataArgs, description="Files of conversations, or of prompts with responses, as in SFT."
    )
    expert_data_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5,
        description="Share of expert rows in the batch of an optimiser step, rounded up to whole rows; what is sampled "
        "stays as it is.",
    )
    join: Literal["batch", "groups"] = Field(
        "batch",
        description="`batch`: the next rows of the files, without a score; `groups`: an answer to the very prompt of a "
        "group becomes a member of it, if there is one (`policy_loss: luffy`).",
    )
    score: float | Literal["graded"] = Field(
        1.0,
        description="What such a member earned (`join: groups`). `graded`: what the verifiers of its prompt say, as of "
        "the policy's answers.",
    )

    def rows_beside(self, sampled: int) -> int:
        """Return the fewest expert rows that are their share of a batch with so many sampled trajectories."""
        if self.join == "groups":
            return 0
        # The decimal number that was written, not the binary one next to it.
        ratio = Fraction(repr(self.expert_data_ratio))
        return math.ceil(sampled * ratio / (1 - ratio))

    def problems(self) -> Iterator[Problem]:
        """Yield what is missing, and what contradicts itself."""
        data = self.data_args
        if not data.file_name and data.custom_cls is None:
            fix = "name one or several files (.jsonl, .json, .csv, .parquet)."
            yield Problem("expert.data_args.file_name", "the expert has written nothing.", fix)
        yield from self.column_problems("expert.")
        for key, other in _COLUMNS.items():
            if getattr(data, key) is not None:
                message = "columns of what an expert wrote have keys of their own."
                yield Problem(f"expert.data_args.{key}", message, f"use expert.{other}.", getattr(data, key))
