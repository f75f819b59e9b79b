"""What the agentic pipeline plays with: env managers of every tag, and the threads their environments run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roll.config import AgenticConfig, EnvManagerConfig, GeneratingArgs
from roll.env_managers.records import EnvManagerLimits, Timeouts
from roll.env_managers.threads import EnvThreads
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import Tag, get_tag
from roll.pipelines.algorithm_options import needs_baselines
from roll.pipelines.core import Core, sampling_params
from roll.pipelines.preflight.agentic import environment, manager_class, templates
from roll.schedulers.rollout import RolloutScheduler

DEFAULT_TURNS = 10


@dataclass
class AgenticRollouts:
    """The schedulers of training and evaluation.

    Attributes:
        train: Plays training levels.
        val: Plays validation levels.
        threads: Where environments run: a shared pool first, then those of tags that need one of their own.
    """

    train: RolloutScheduler
    val: RolloutScheduler
    threads: list[EnvThreads]

    def close(self) -> None:
        """Stop the threads."""
        for pool in self.threads:
            pool.close()


def build_rollouts(config: AgenticConfig, core: Core) -> AgenticRollouts:
    """Build env managers and schedulers of a configuration that the preflight check has passed."""
    threads = [EnvThreads()]
    train, val = config.actor_infer.generating_args, config.val_generating
    return AgenticRollouts(
        train=_scheduler(config.train_env_manager, train, config, core, threads, needs_baselines(config)),
        val=_scheduler(config.val_env_manager, val, config, core, threads),
        threads=threads,
    )


def _scheduler(
    manager: EnvManagerConfig,
    generating: GeneratingArgs,
    config: AgenticConfig,
    core: Core,
    threads: list[EnvThreads],
    with_baselines: bool = False,
) -> RolloutScheduler:
    greedy = generating.model_copy(update={"temperature": 0.0})
    return RolloutScheduler(
        _managers(manager, generating, config, core, threads),
        {name: environment(name, manager) for name in manager.tags},
        core.generation,
        config.seed,
        greedy=_managers(manager, greedy, config, core, threads) if with_baselines else None,
    )


def _managers(
    manager: EnvManagerConfig,
    generating: GeneratingArgs,
    config: AgenticConfig,
    core: Core,
    threads: list[EnvThreads],
) -> Mapping[str, TrajectoryEnvManager]:
    return {
        name: manager_class(get_tag(name))(
            renderer=core.renderer,
            generate=core.generation.generator(sampling_params(generating)),
            limits=_limits(get_tag(name), manager, config.sequence_length, generating.max_new_tokens),
            templates=templates(get_tag(name)),
            timeouts=Timeouts(manager.timeouts.reset, manager.timeouts.step, manager.timeouts.generate),
            threads=_threads(config, name, threads),
            activity=core.activity,
        )
        for name in manager.tags
    }


def _limits(tag: Tag, manager: EnvManagerConfig, sequence_length: int, max_new_tokens: int) -> EnvManagerLimits:
    turns = manager.max_steps or tag.max_steps or DEFAULT_TURNS
    return EnvManagerLimits(turns, sequence_length, max_new_tokens, tag.max_tokens_per_step)


def _threads(config: AgenticConfig, name: str, pools: list[EnvThreads]) -> EnvThreads:
    """Return the shared pool, or one of its own for a tag whose environments bear only so many calls at a time."""
    tag = config.tags().get(name)
    most = 0 if tag is None else 1 if tag.use_thread_lock else tag.max_env_step_concurrent
    if most:
        pools.append(EnvThreads(most))
        return pools[-1]
    return pools[0]
