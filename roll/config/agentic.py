"""The configuration of the agentic pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.checks import group_of_one_problems, responses_problems
from roll.config.env_manager import RewardNormalization
from roll.config.errors import Problem
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
        if self.prompts_per_step:
            yield from responses_problems(self, self.num_return_sequences_in_group)
