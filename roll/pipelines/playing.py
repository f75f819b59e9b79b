"""What runs with environments have in common: episodes, and prompts beside them -> trajectories."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, TypeVar

from roll.config import PlayingConfig
from roll.distributed import Cluster
from roll.pipelines.reporting.domain_metrics import domain_metrics, evaluation_metrics
from roll.pipelines.reporting.metrics import generation_metrics, prefixed
from roll.pipelines.roles.core import build_core
from roll.pipelines.roles.opponents import League
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampled import Learns, SampledRun
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.grading import GradedPlay, graders_by_tag, start_graders
from roll.pipelines.sampling.levels import (
    CURRICULUM,
    TRAIN,
    VAL,
    generation_reports,
    level_sources,
    require_turns,
    start_environments,
    tag_curriculum,
    validation_levels,
)
from roll.pipelines.sampling.prompt_data import load_data
from roll.pipelines.sampling.prompts import PROMPTS, Prompts
from roll.pipelines.sampling.stream import Source, load_state
from roll.schedulers.curriculum import TagCurriculum
from roll.schedulers.group_stream import StepGroups
from roll.schedulers.groups import require_some
from roll.schedulers.levels import Level, LevelPlay
from roll.schedulers.tasks import Play
from roll.workers.loading import load_text

Config = TypeVar("Config", bound=PlayingConfig)


class PlayingRun(SampledRun[Config]):
    """Plays episodes of environments, in groups that share a level; may answer prompts too, each in its share."""

    prompts: Prompts | None = None
    curriculum: TagCurriculum | None = None

    @abstractmethod
    def make_learner(self) -> Learns:
        """Return what learns from the episodes, with the models of ``core``."""

    async def assemble(self, cluster: Cluster) -> None:
        """Start models, engines and environments."""
        config = self.config
        text = require_turns(config, load_text(config))
        data = load_data(config, text) if config.prompts_per_step else None
        self.introduce_data(data)
        self.read_data(text)
        self.core = await build_core(config, text, cluster)
        self.learner = self.make_learner()
        elsewhere = await self.share_learning(cluster, data)
        parcels = None if elsewhere is None else elsewhere.parcels
        learns_only = config.learns_from_store
        self.environments = None if learns_only else await start_environments(config, self.core, TRAIN, parcels)
        self.val_environments = await start_environments(config, self.core, VAL, parcels) if config.eval_steps else None
        answering = None if data is None else elsewhere
        graders = await start_graders(config, self.core, answering) if config.rewards else {}
        self.graders = graders_by_tag(config, graders)
        self.curriculum = tag_curriculum(config)
        sources: list[Source] = []
        if self.environments is not None:
            sources = level_sources(config, self._play(self.environments), self.curriculum)
        if data is not None:
            levels = sum(source.groups_per_step for source in sources)
            how_many = {"per_step": config.prompts_per_step, "beside": levels}
            self.prompts = Prompts(config, self.core, data, graders, **how_many, elsewhere=answering is not None)
            sources.append(self.prompts.source())
        self.give_groups(sources)

    async def updated(self, step: int) -> None:
        """Let the policy join the leagues whose time it is."""
        await super().updated(step)
        for league in self._leagues():
            await league.grow(step, self.core.trainer)

    async def ready(self, first: int, resumed: bool) -> None:
        """Give engines their weights, and leagues their members."""
        await super().ready(first, resumed)
        if resumed:
            for league in self._leagues():
                await league.restore(first)

    async def measure(self) -> dict[str, float]:
        """Return what engines and workers report of the step; the workers with environments ask the engines too."""
        reports = [] if self.environments is None else await generation_reports(self.environments)
        if self.prompts:
            reports += await self.prompts.generation_reports()
        return {**generation_metrics(reports), **self.core.cluster_metrics()}

    def sampled(self, rollout: StepGroups) -> dict[str, float]:
        """Tell the curriculum how the step went; return what to report of it and of the prompts."""
        metrics: dict[str, float] = {}
        if self.curriculum is not None:
            used_up = [*rollout.groups, *(each.group for each in rollout.dropped)]
            metrics = prefixed(self.curriculum.learned(used_up), "rollout")
        if self.prompts is None or self.config.learns_from_store:
            return metrics
        return {**metrics, **self.prompts.sampled(rollout, self.stream.position(PROMPTS))}

    def state(self) -> dict[str, Any]:
        """Return which levels were played and which prompts were answered, as JSON."""
        sampling = self.stream.state_dict()
        answered = {} if self.prompts is None or self.config.learns_from_store else self.prompts.state(sampling)
        chosen: dict[str, Any] = {}
        if self.curriculum is not None:
            levels = sampling[CURRICULUM]
            chosen = {CURRICULUM: self.curriculum.state_dict(min([levels["next"], *levels["unfinished"]]))}
        return {**super().state(), "sampling": sampling, **chosen, **answered}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on behind the last level and the last prompt of the checkpoint.

        Raises:
            ConfigError: If the data are not those of the checkpoint.
        """
        if self.prompts:
            self.prompts.load_state(state)
        if self.curriculum is not None and CURRICULUM in state:
            self.curriculum.load_state_dict(state[CURRICULUM])
        # Earlier versions wrote "groups_played", and "ahead" where they sampled ahead.
        load_state(self.stream, state.get("sampling", state.get("ahead")), int(state.get("groups_played", 0)))

    async def evaluate(self, step: int) -> None:
        """Play the validation levels and answer the validation prompts, the same at every evaluation."""
        if self.val_environments is None:
            return
        with self.progress.stage("eval"):
            play = self._play(self.val_environments)
            groups = await sample_all(validation_levels(self.config), play, self.progress)
            require_some(groups)
            groups += await self.prompts.evaluate(self.progress) if self.prompts else []
        await self.report_evaluation(groups, step, {**evaluation_metrics(groups), **domain_metrics(groups)})

    def _leagues(self) -> list[League]:
        return [opponent.league for opponent in self.core.opponents.values() if opponent.league is not None]

    def _play(self, environments: WorkerPool) -> Play[Level]:
        play = LevelPlay(partial(environments.call, "play"), self.config.seed)
        return GradedPlay(play, self.graders) if self.graders else play
