"""Levels of environment tags: the workers that play them, and the sources of a run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from roll.config import ConfigError, PlayingConfig, Problem
from roll.config.batch_plan import rollout_plan
from roll.config.trainer_keys import TrainerKeys
from roll.distributed import WorkerDiedError, WorkerSpec
from roll.pipelines.roles.core import Sampler
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.sampling.filters import has_variance
from roll.pipelines.sampling.stream import Source
from roll.schedulers import levels
from roll.schedulers.curriculum import TagCurriculum
from roll.schedulers.difficulty import Bands
from roll.schedulers.levels import Level
from roll.schedulers.tasks import Play, Task
from roll.workers.classes import worker_class
from roll.workers.environment import Parcels, environment
from roll.workers.loading import Text

TRAIN, VAL = "train_env_manager", "val_env_manager"

VALIDATION_OFFSET = 1 << 40
"""Added to the numbers of validation groups: no training step ever reaches these seeds."""


def require_turns(config: TrainerKeys, text: Text) -> Text:
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


async def start_environments(
    config: PlayingConfig, core: Sampler, section: str, parcels: Parcels | None = None
) -> WorkerPool:
    """Start the workers of a section (``train_env_manager``, ``val_env_manager``) that the preflight check passed.

    Args:
        config: The run.
        core: What samples.
        section: The section.
        parcels: Where tokens and texts of episodes are put, if the driver is not to have them.
    """
    text = core if config.cluster == "local" else None
    seats = {name: opponent.seats for name, opponent in core.opponents.items()}
    arguments = (config, section, core.registered, core.engines.engines, text, core.activity, seats, parcels)
    group = await core.cluster.start(section, WorkerSpec(cls=worker_class(config, section), args=arguments))
    pool = core.pool(group)
    for name, opponent in core.opponents.items():
        opponent.engines.on_restart(partial(pool.tell, "opponent_restarted", name))
    return pool


async def generation_reports(workers: WorkerPool) -> list[dict[str, float]]:
    """Return what the workers' schedulers of requests report; one that is being made again reports nothing."""

    async def report(rank: int) -> list[dict[str, float]]:
        with suppress(WorkerDiedError):
            return [await workers.group.one(rank, "generation_metrics")]
        return []

    return [one for some in await asyncio.gather(*map(report, range(workers.group.size))) for one in some]


CURRICULUM = "curriculum"
"""The name of the levels in checkpoints where a curriculum chooses their tags."""


def tag_curriculum(config: PlayingConfig) -> TagCurriculum | None:
    """Return what chooses the tags of training, if they have no fixed shares."""
    manager = config.train_env_manager
    given = manager.curriculum
    if given is None or config.learns_from_store:
        return None
    bands = difficulty_bands(config)
    return TagCurriculum(manager.tags, given.choose, given.mastered_at, given.others, config.seed, bands)


def difficulty_bands(config: PlayingConfig) -> Bands:
    """Return the bands of difficulty that the curriculum parts the levels of training in."""
    manager = config.train_env_manager

    def measure(tag: str, seed: int) -> float:
        env = environment(tag, manager)()
        try:
            return float(getattr(env, "unwrapped", env).difficulty(seed))
        finally:
            env.close()

    return Bands({} if manager.curriculum is None else manager.curriculum.difficulty, measure, config.seed)


def level_sources(config: PlayingConfig, play: Play[Level], curriculum: TagCurriculum | None = None) -> list[Source]:
    """Return the levels of the training tags without end, each tag in its share, or as a curriculum chooses."""
    played = rollout_plan(config.train_env_manager, config.rollout_batch_size, config.dynamic_sampling)
    counts, size = played.groups_per_rollout, played.group_size
    if curriculum is None:
        sources = levels.level_sources(counts, size, config.seed, "train-")
    else:
        counts = [(CURRICULUM, sum(count for _, count in counts))]
        sources = {CURRICULUM: levels.chosen_source(curriculum.level_at, size, "train-")}
    return [
        Source(
            name=name,
            tasks=sources[name],
            play=play,
            groups_per_step=count,
            group_size=size,
            keep=has_variance if config.dynamic_sampling.enable else None,
            # Episodes take turns with one another in the engine: who joins them later would change what it computes.
            in_rounds=True,
        )
        for name, count in counts
        if count
    ]


def validation_levels(config: PlayingConfig) -> list[Task[Level]]:
    """Return the levels of an evaluation, the same every time."""
    played = rollout_plan(config.val_env_manager, config.val_batch_size)
    return levels.level_tasks(
        played.groups_per_rollout, played.group_size, config.seed, "val-", offset=VALIDATION_OFFSET
    )
