"""The keys of training reward models: of whole answers, from pairs, or of steps, from labels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roll.config.pair_keys import PairKeys
from roll.config.worker import NonNegativeFloat


class RewardModelKeys(PairKeys):
    """The keys of training a reward model; :class:`roll.config.reward_model.RewardModelConfig` adds what they mean."""

    supervision: Literal["outcome", "process"] = Field(
        "outcome",
        description="What is scored: `outcome` whole answers, from pairs (Bradley-Terry); `process` every step of an "
        "answer, from labels.",
    )
    center_rewards_coefficient: NonNegativeFloat = Field(
        0.0, description="`outcome`: weight of the squared sum of a pair's scores, which draws scores to 0 on average."
    )
    margin_key: str | None = Field(
        None, description="`outcome`: column with the margin by which the chosen answer is to score higher."
    )
    steps_key: str | None = Field(None, description="`process`: column with the steps of an answer, a list of text.")
    labels_key: str | None = Field(
        None, description="`process`: column with a label for each step: true or false, or a probability."
    )
    step_separator: str = Field(
        "\n", description="`process`: what stands behind every step; there it is scored. The verifier splits at it."
    )

    @property
    def takes_margins(self) -> bool:
        """Whether a pair may say by how much its better answer is better."""
        return True
