"""The keys of an evaluation without training."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from roll.config.errors import Problem
from roll.config.pipeline import ConfigPath
from roll.config.rlvr import RLVRConfig


class EvaluationConfig(RLVRConfig):
    """Everything that ``examples/start_evaluation.py`` reads: any RLVR configuration, and recorded responses.

    What only training needs is accepted and left alone, so that the configuration of a run can evaluate its outcome.
    """

    program = "examples/start_evaluation.py"

    recorded: ConfigPath | None = Field(
        None,
        description="Responses to grade instead of sampling them: trajectories that a run has stored (parquet), whose "
        "prompts are looked up in the validation files, or a data file with a column `response` or `responses`.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield what stands in the way of evaluating."""
        from roll.config.rlvr_checks import evaluation_problems

        return evaluation_problems(self)

    def cautions(self) -> Iterator[str]:
        """Nothing: keys of training have no effect on purpose."""
        return iter(())
