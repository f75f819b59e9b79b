"""What gives each training step its groups: task sources, each in its share, synchronously or ahead of training."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from roll.config import SamplingConfig
from roll.config.grading_keys import GradedKeys
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.roles.engines import EngineRole
from roll.pipelines.sampling.meter import RolloutMeter
from roll.rewards.groups import GroupRubric
from roll.schedulers.group_stream import GroupStream, OnProgress, StepGroups
from roll.schedulers.groups import GroupPlayer, Spares
from roll.schedulers.source_share import GroupSource, Keep
from roll.schedulers.tasks import Play, Task, TaskSource
from roll.trajectories.model import TrajectoryGroup

Published = TypeVar("Published")


class Groups(Protocol):
    """What gives each step its groups: they are sampled for it (:class:`GroupStream`), or lie in a store."""

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Wait for the groups of a step, which trains weights of ``version``."""
        ...

    def position(self, name: str) -> int:
        """Return the number of the first task of a source that has never begun."""
        ...

    def trained(self) -> None:
        """Take note that the step's groups are trained."""
        ...

    async def update(self, publish: Callable[[], Awaitable[Published]]) -> Published:
        """Publish new weights while no group begins."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint remembers, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run stopped, before the first :meth:`next`."""
        ...

    def begin_at(self, position: int) -> None:
        """Begin behind so many groups of the whole run."""
        ...

    async def close(self) -> None:
        """Stop what is under way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where tasks come from, and how they are played.

    Attributes:
        name: Its name in checkpoints.
        tasks: The tasks.
        play: Plays one member of a group.
        groups_per_step: Its share of a step.
        group_size: Members of a group.
        keep: Which groups are worth training on; others are replaced. ``None`` keeps all.
        additional: Tasks under way beyond those that are missing, where ``keep`` replaces some.
        in_rounds: Whether a synchronous step begins replacements all together, when nothing else is under way.
    """

    name: str
    tasks: TaskSource[Any]
    play: Play[Any]
    groups_per_step: int
    group_size: int
    keep: Keep | None = None
    additional: int = 0
    in_rounds: bool = False


def group_stream(
    config: GradedKeys, sources: Sequence[Source], engines: EngineRole, meter: RolloutMeter
) -> GroupStream:
    """Make what gives each step its groups, and with ``async_generation_ratio`` samples the next ones meanwhile.

    Args:
        config: The run.
        sources: Where tasks come from.
        engines: What samples.
        meter: Told of everything that is sampled.
    """
    ratio = config.async_generation_ratio
    # Where nothing is sampled meanwhile, engines need not be frozen.
    pause, resume = (engines.pause, engines.resume) if ratio > 0 else (None, None)
    held_back = config.actor_infer.model_update_frequency - 1
    return GroupStream(
        {source.name: _groups(config, source, meter) for source in sources},
        ratio=ratio,
        max_staleness=-int(-ratio // 1) + held_back,
        pause=pause,
        resume=resume,
        patience=config.over_rollout.wait_after_min if config.over_rollout.ratio else 0.0,
    )


def members_per_step(sources: Sequence[Source]) -> int:
    """Return how many members the groups of a step have together."""
    return sum(source.groups_per_step * source.group_size for source in sources)


def load_state(stream: Groups, state: Mapping[str, Any] | None, position: int) -> None:
    """Let a stream go on where another run stopped.

    Args:
        stream: One that has not begun.
        state: What :meth:`GroupStream.state_dict` returned; ``None`` where a checkpoint of an earlier version has none.
        position: How many groups that run had begun; counts only then.
    """
    if state is None:
        stream.begin_at(position)
    else:
        stream.load_state_dict(state)


def _groups(config: GradedKeys, source: Source, meter: RolloutMeter) -> GroupSource[Any]:
    """Return the groups of a source as the configuration wants them played."""
    ahead, replacing = config.async_generation_ratio > 0, source.keep is not None
    spare = config.over_rollout.spare(source.groups_per_step)
    player: GroupPlayer[Any] = GroupPlayer(
        source.play,
        with_baselines=needs_baselines(config),
        spares=spares(config),
        on_member=meter.member,
        grade=GroupRubric(config.group_reward).grade if config.group_reward else None,
    )
    return GroupSource(
        tasks=source.tasks,
        play_group=retried(player.play_group, config.max_retry_times),
        groups_per_step=source.groups_per_step,
        keep=source.keep,
        most=source.groups_per_step * config.dynamic_sampling.max_batches if replacing else None,
        additional=0 if ahead else source.additional,
        in_rounds=source.in_rounds and not ahead and not spare,
        spare=spare,
        # Groups that broke are early; they must not take the place of those that are late.
        replace_failed=replacing or ahead or spare > 0,
    )


def retried(
    play_group: Callable[[Task[Any]], Awaitable[TrajectoryGroup]], times: int
) -> Callable[[Task[Any]], Awaitable[TrajectoryGroup]]:
    """Return what plays a group again, at most so many times, when all of its members broke.

    It is the same task with the same seeds: what is sampled does not depend on the number of tries, and a task that
    always breaks still fails.
    """

    async def play(task: Task[Any]) -> TrajectoryGroup:
        group = await play_group(task)
        for _ in range(times):
            if any(not member.status.is_error for member in group.trajectories):
                break
            group = await play_group(task)
        return group

    return play if times else play_group


def spares(config: SamplingConfig) -> Spares:
    """Return the spare members of each group."""
    return Spares(config.group_size_redundancy, config.straggler_timeout if config.group_size_redundancy else None)
