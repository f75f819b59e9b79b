"""The configuration of the RLVR pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from roll.config.answering import AnsweringConfig
from roll.config.checks import responses_problems
from roll.config.errors import Problem
from roll.config.rl import RLConfig
from roll.config.rlvr_checks import rlvr_cautions, rlvr_problems


class RLVRConfig(AnsweringConfig, RLConfig):
    """Everything that ``examples/start_rlvr_pipeline.py`` reads."""

    program = "examples/start_rlvr_pipeline.py"
    needs_rewards: ClassVar[bool] = True

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from rlvr_problems(self)
        yield from responses_problems(self, self.num_return_sequences_in_group)
        if self.expert is not None and self.expert.score == "graded" and self.tools:
            message = "verifiers read the calls of an answer with tools, which an expert's row does not have."
            yield Problem("expert.score", message, "set the score of an expert's answer, such as 1.0.", "graded")

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        yield from rlvr_cautions(self)
