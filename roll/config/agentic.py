"""The configuration of the agentic pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from roll.config.checks import group_of_one_problems, responses_problems
from roll.config.env_manager import RewardNormalization
from roll.config.errors import Problem
from roll.config.playing import PlayingConfig
from roll.config.rl import RLConfig

_LARGE_STEP: Final = 4_000_000
"""Tokens of a step from which on they do not go through the program by themselves: some 200 MB in a batch."""


class AgenticConfig(PlayingConfig, RLConfig):
    """Everything that ``examples/start_agentic_pipeline.py`` reads."""

    program = "examples/start_agentic_pipeline.py"

    data_plane: Literal["auto", "driver", "workers"] = Field(
        "auto",
        description="`cluster: ray`: where the tokens of episodes go. `driver`: through the program itself; `workers`: "
        "from environments to a worker that learns for it, so that the program needs no more memory for larger steps; "
        "`auto`: `workers` from 4 million tokens per step on, where the run allows it.",
    )

    @property
    def score_normalization(self) -> RewardNormalization:
        """How the scores of episodes are normalised."""
        return self.reward_normalization

    @property
    def response_limit(self) -> int:
        """Most response tokens of an episode, over all turns."""
        return self.response_length or self.sequence_length

    @property
    def learns_elsewhere(self) -> bool:
        """Whether the tokens of episodes go from workers to a worker, and not through the program itself."""
        if self.data_plane != "auto":
            return self.data_plane == "workers"
        large = self.rollout_batch_size * self.sequence_length >= _LARGE_STEP
        return large and next(self._at_the_driver(), None) is None

    def _at_the_driver(self) -> Iterator[tuple[str, str]]:
        """Yield why the program itself needs the tokens of episodes: a key, and what it does."""
        if self.cluster != "ray":
            yield "cluster", "everything is in one process"
        if self.replays or self.mode != "both":
            yield "experience" if self.experience is not None else "mode", "groups go through a store"
        if self.expert is not None:
            yield "expert", "what experts wrote joins what was sampled"

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if self.data_plane == "workers":
            for key, reason in self._at_the_driver():
                fix = f"leave out data_plane, or {key}." if key != "cluster" else "leave it out, or set cluster: ray."
                yield Problem("data_plane", f"tokens go through the program: {reason} ({key}).", fix, "workers")
        key, size = "train_env_manager.group_size", self.train_env_manager.group_size
        normalization = self.reward_normalization
        others = []
        if normalization.grouping == "state" and normalization.method != "identity":
            reason = f"reward_normalization {normalization.method!r} over grouping 'state'"
            others.append((reason, "reward_normalization.grouping: batch"))
        yield from group_of_one_problems(self, key, size, "the members of a group", others)
        if self.prompts_per_step:
            yield from responses_problems(self, self.num_return_sequences_in_group)
