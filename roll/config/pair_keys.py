"""The keys of learning from pairs of answers, whatever is learned: which columns hold what."""

from __future__ import annotations

from pydantic import Field

from roll.config.row_steps import RowSteps
from roll.config.worker import NonNegativeFloat


class PairKeys(RowSteps):
    """The keys of every run over pairs of answers, a better and a worse one."""

    prompt_key: str | None = Field(None, description="Column with what was asked. null, here and below: usual names.")
    chosen_key: str | None = Field(None, description="Column with the better answer.")
    rejected_key: str | None = Field(None, description="Column with the worse answer.")
    system_key: str | None = Field(None, description="Column with a system message.")
    tools_key: str | None = Field(None, description="Column with descriptions of tools, for chat templates.")
    pair_margin: NonNegativeFloat = Field(
        0.0, description="Pairs of a run's groups: scores must differ by more than this."
    )

    @property
    def takes_judged(self) -> bool:
        """Whether rows are single answers with a label, instead of pairs."""
        return False

    @property
    def takes_margins(self) -> bool:
        """Whether a pair may say by how much its better answer is better."""
        return False
