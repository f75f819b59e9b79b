"""Reinforcement learning from what a run samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from roll.config import RLConfig
from roll.data.supervised import load_demonstrations
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.token_record import store_learned
from roll.pipelines.sampled import SampledRun
from roll.pipelines.sampling.data_sections import data_faults_at
from roll.pipelines.sampling.demonstrations import describe, encode
from roll.pipelines.sampling.expert_answers import ExpertAnswers
from roll.pipelines.sampling.experts import ExpertRows
from roll.workers.loading import Text

Config = TypeVar("Config", bound=RLConfig)


class RLPipeline(SampledRun[Config]):
    """A run that learns from the scores of what it samples. A pipeline says what (``stream``) and what is evaluated."""

    experts: ExpertRows | None = None
    answers: ExpertAnswers | None = None
    _written: Sequence[str] = ()

    def read_data(self, text: Text) -> None:
        """Read what experts wrote, if anything, before a model loads.

        Raises:
            ConfigError: If it cannot be used.
        """
        expert = self.config.expert
        if expert is None:
            return
        with data_faults_at("expert.data_args"):
            table = load_demonstrations(expert.data_args, expert, self.config.sequence_length, partial(encode, text))
        self._written = describe("expert", table)
        if expert.join == "groups":
            self.answers = ExpertAnswers(table, expert.score)
        else:
            self.experts = ExpertRows.of(self.config, table, int(text.tokenizer.pad_token_id or 0))

    def remarks(self) -> Iterator[str]:
        """Say what was read."""
        yield from super().remarks()
        yield from (f"  {line}" for line in self._written)

    def keep(self, batch: TrainingBatch, step: int) -> None:
        """Store advantages and log-probs of the sampled tokens."""
        store_learned(self.config, batch, step)

    def headline(self) -> str:
        """Return policy, algorithm and batch in a few words."""
        policy = Path(self.config.model_path("actor_train")).name
        return f"{policy}, {self.config.adv_estimator}, {self.config.plan().train.short()}"
