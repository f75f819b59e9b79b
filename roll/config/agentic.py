"""The configuration of the agentic pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from roll.config.checks import group_of_one_problems, responses_problems
from roll.config.env_manager import RewardNormalization
from roll.config.errors import Problem
from roll.config.opponents import staying
from roll.config.playing import PlayingConfig
from roll.config.rl import RLConfig


class AgenticConfig(PlayingConfig, RLConfig):
    """Everything that ``examples/start_agentic_pipeline.py`` reads."""

    program = "examples/start_agentic_pipeline.py"

    @property
    def score_normalization(self) -> RewardNormalization:
        """How the scores of episodes are normalised."""
        return self.reward_normalization

    @property
    def response_limit(self) -> int:
        """Most response tokens of an episode, over all turns."""
        return self.response_length or self.sequence_length

    def opponents_stay(self, pretrain: str) -> Self:
        """Return it with opponents who stay who they are while another policy than ``pretrain`` is measured."""
        return self.model_copy(update={"opponents": staying(self.opponents, pretrain)}) if self.opponents else self

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        key, size = "train_env_manager.group_size", self.train_env_manager.group_size
        normalization = self.reward_normalization
        others = []
        if normalization.grouping == "state" and normalization.method != "identity":
            reason = f"reward_normalization {normalization.method!r} over grouping 'state'"
            others.append((reason, "reward_normalization.grouping: batch"))
        yield from group_of_one_problems(self, key, size, "the members of a group", others)
        if self.expert is not None and self.expert.score == "graded":
            message = "verifiers grade answers to prompts, and this run plays."
            fix = "set the score of a game that an expert played, such as 1.0."
            yield Problem("expert.score", message, fix, "graded")
        if self.prompts_per_step:
            yield from responses_problems(self, self.num_return_sequences_in_group)
