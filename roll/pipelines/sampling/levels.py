"""What the agentic pipeline plays with: workers with environments, and the scheduler of their groups."""

from __future__ import annotations

from contextlib import suppress

from roll.config import AgenticConfig, ConfigError, Problem
from roll.config.batch_plan import rollout_plan
from roll.distributed import WorkerDiedError, WorkerSpec
from roll.env_managers.records import EpisodeSpec
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.roles.core import Core
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.filters import has_variance
from roll.pipelines.sampling.stream import Ahead, spares, stream_options
from roll.schedulers.group_stream import GroupStream
from roll.schedulers.group_streams import GroupStreams
from roll.schedulers.groups import RolloutScheduler, endless_specs
from roll.trajectories.model import Trajectory
from roll.workers.classes import worker_class
from roll.workers.loading import Text

TRAIN, VAL = "train_env_manager", "val_env_manager"


def require_turns(config: AgenticConfig, text: Text) -> Text:
    """Return ``text`` if its chat template can hold conversations of several turns.

    Raises:
        ConfigError: If it cannot.
    """
    if text.renderer.turn_problem is None:
        return text
    key, value = (
        ("pretrain", config.pretrain)
        if config.chat_template is None
        else (config.chat_template_key, config.chat_template)
    )
    fix = "games have turns: name another template by actor_train.data_args.template (chatml, user_assistant, a file)."
    raise ConfigError([Problem(key, f"no second turn can be played: {text.renderer.turn_problem}.", fix, value)])


class Environments:
    """The environments of one section (``train_env_manager``, ``val_env_manager``), in as many workers as it asks for.

    Args:
        pool: The workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.sampled_tokens = 0

    async def play(self, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        """Play one episode; if its worker dies, another one plays it from the same seeds."""
        trajectory: Trajectory = await self.pool.call("play", spec, greedy)
        self.sampled_tokens += trajectory.completion_tokens
        return trajectory

    async def generation_reports(self) -> list[dict[str, float]]:
        """Return what the workers' schedulers of requests report; one that is being made again reports nothing."""
        reports = []
        for rank in range(self.pool.group.size):
            with suppress(WorkerDiedError):
                reports.append(await self.pool.group.one(rank, "generation_metrics"))
        return reports


async def start_environments(config: AgenticConfig, core: Core, section: str) -> Environments:
    """Start the workers of a section of a configuration that the preflight check has passed."""
    text = core if config.cluster == "local" else None
    arguments = (config, section, core.registered, core.engines.engines, text, core.activity)
    group = await core.cluster.start(section, WorkerSpec(cls=worker_class(config, section), args=arguments))
    return Environments(core.pool(group))


def build_ahead(config: AgenticConfig, core: Core, environments: Environments) -> Ahead:
    """Return what plays levels without end, each tag in its share."""
    played = rollout_plan(config.train_env_manager, config.rollout_batch_size, config.dynamic_sampling)
    scheduler = RolloutScheduler(
        play=environments.play,
        run_seed=config.seed,
        with_baselines=needs_baselines(config),
        spares=spares(config),
    )
    sources = endless_specs(played.groups_per_rollout, played.group_size, config.seed, "train-")
    counts = dict(played.groups_per_rollout)
    streams = {
        tag: GroupStream(
            source,
            scheduler.run_group,
            groups_per_step=counts[tag],
            keep=has_variance if played.most is not None else None,
            most=None if played.most is None else counts[tag] * config.dynamic_sampling.max_batches,
            **stream_options(config),
        )
        for tag, source in sources.items()
    }
    both = GroupStreams(streams, core.engines.pause, core.engines.resume)
    return Ahead(both, core.engines, lambda: environments.sampled_tokens)
