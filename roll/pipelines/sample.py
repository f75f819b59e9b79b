"""Sampling alone: a policy plays groups of levels, which are stored as those of training are. Nothing is learned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from roll.config import ConfigError
from roll.config.batch_plan import rollout_plan
from roll.config.sample import SampleConfig
from roll.distributed import Cluster
from roll.pipelines.checks.agentic import playing_problems
from roll.pipelines.reporting.domain_metrics import domain_metrics, evaluation_metrics
from roll.pipelines.reporting.metrics import prefixed, rollout_metrics, success_in_environments
from roll.pipelines.reporting.review import keep_evaluation, report_failures, store
from roll.pipelines.roles.core import Sampler, build_sampler
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.run.checks import absence_problems
from roll.pipelines.run.command import review_command
from roll.pipelines.run.life_cycle import Run
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.grading import GradedPlay, graders_by_tag, start_graders
from roll.pipelines.sampling.levels import TRAIN, VAL, require_turns, start_environments, validation_levels
from roll.schedulers.groups import RolloutError, require_some
from roll.schedulers.levels import Level, LevelPlay, level_tasks
from roll.schedulers.tasks import Play
from roll.workers.loading import load_text


class SamplePipeline(Run[SampleConfig]):
    """Plays the levels that training would play; a step is one rollout."""

    fails_with = (*Run.fails_with, RolloutError)

    sampler: Sampler

    @classmethod
    def check(cls, config: SampleConfig) -> list[str]:
        """Check what loading cannot; return what has no effect: nothing so far.

        Raises:
            ConfigError: Lists every problem.
        """
        problems = list(absence_problems(config, ("env_modules", "reward_modules", "tracker_modules")))
        problems = problems or list(playing_problems(config, trains=False))
        if problems:
            raise ConfigError(problems)
        return []

    async def assemble(self, cluster: Cluster) -> None:
        """Start engines and environments."""
        config = self.config
        self.sampler = await build_sampler(config, require_turns(config, load_text(config)), cluster)
        graders = graders_by_tag(config, await start_graders(config, self.sampler) if config.rewards else {})

        def play(environments: WorkerPool) -> Play[Level]:
            plain = LevelPlay(partial(environments.call, "play"), config.seed)
            return GradedPlay(plain, graders) if graders else plain

        self._play = play(await start_environments(config, self.sampler, TRAIN))
        self._val_play = play(await start_environments(config, self.sampler, VAL)) if config.eval_steps else None

    async def step(self, step: int) -> None:
        """Play the levels of a step, and store them."""
        plan = rollout_plan(self.config.train_env_manager, self.config.rollout_batch_size)
        per_step = sum(count for _, count in plan.groups_per_rollout)
        first = (step - 1) * per_step
        tasks = level_tasks(plan.groups_per_rollout, plan.group_size, self.config.seed, "train-", first=first)
        async with self.sampler.watched():
            with self.progress.stage("rollout"):
                groups = await sample_all(tasks, self._play, self.progress)
                require_some(groups)
                report_failures(self.progress, groups, f"step {step}")
                with self.changing(step):
                    store(self.config, groups, step, "train", self.sampler.token_text)
        success = success_in_environments(groups)
        named = {} if success is None else {"env/success": success}
        self.log.step(step, {**named, **prefixed(rollout_metrics(groups), "rollout")})

    async def evaluate(self, step: int) -> None:
        """Play the validation levels."""
        if self._val_play is None:
            return
        async with self.sampler.watched():
            with self.progress.stage("eval"):
                groups = await sample_all(validation_levels(self.config), self._val_play, self.progress)
                require_some(groups)
        keep_evaluation(self.config, self.progress, groups, step, self.sampler.token_text)
        self.log.evaluation(step, prefixed({**evaluation_metrics(groups), **domain_metrics(groups)}, "val"))

    async def save_state(self, folder: Path) -> None:
        """Nothing was learned: what was sampled is stored already."""

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Every step has levels of its own, whatever was before it."""

    def headline(self) -> str:
        """Return policy and rollout in a few words."""
        return f"{Path(self.config.model_path('actor_infer')).name}, sampling, {self.config.plan().train.short()}"

    def how_to_review(self) -> str:
        """Return the command that opens the review."""
        return review_command(self.config)
