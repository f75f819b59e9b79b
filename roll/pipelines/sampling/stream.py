"""What gives each training step its groups: task sources, each in its share, synchronously or ahead of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.config import RLConfig
from roll.config.grading_keys import GradedKeys
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.reporting.metrics import Throughput
from roll.pipelines.roles.engines import EngineRole
from roll.rewards.groups import GroupRubric
from roll.schedulers.group_stream import GroupStream, Keep
from roll.schedulers.group_streams import GroupStreams, JointStep
from roll.schedulers.groups import GroupPlayer, require_some
from roll.schedulers.members import Spares
from roll.schedulers.tasks import Play, TaskSource
from roll.tracking import Progress


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


class Sampling:
    """Gives each step its groups, and with ``async_generation_ratio`` samples the next ones meanwhile.

    Args:
        config: The run.
        sources: Where tasks come from.
        engines: What samples.
        sampled_tokens: Says how many tokens were sampled so far.
        progress: Where to show how far a step is.
    """

    def __init__(
        self,
        config: GradedKeys,
        sources: Sequence[Source],
        engines: EngineRole,
        sampled_tokens: Callable[[], int],
        progress: Progress,
    ) -> None:
        self._config = config
        self._engines = engines
        self._sampled_tokens = sampled_tokens
        self._progress = progress
        self._is_ahead = config.async_generation_ratio > 0
        self._members = 0
        self._wanted = sum(source.groups_per_step * source.group_size for source in sources)
        self._since, self._before = time.perf_counter(), 0
        # Where nothing is sampled meanwhile, engines need not be frozen.
        pauses = (engines.pause, engines.resume) if self._is_ahead else (None, None)
        self.streams = GroupStreams({source.name: self._stream(source) for source in sources}, *pauses)

    async def next(self, step: int) -> JointStep:
        """Wait for the groups of a step; its metrics say how much was sampled.

        Raises:
            RolloutError: If every member of every group broke.
        """
        if not self._is_ahead:
            self._since, self._before, self._members = time.perf_counter(), self._sampled_tokens(), 0
        got = await self.streams.next(step, step - 1, self._show_groups)
        require_some(got.groups)
        for note in got.notes:
            self._progress.warning(f"step {step}: {note}")
        now, sampled = time.perf_counter(), self._sampled_tokens()
        measured = Throughput()
        # Ahead, tokens are counted over the whole step: sampling goes on all the time.
        measured.add(got.groups, sampled - self._before, now - self._since)
        self._since, self._before = now, sampled
        got.metrics.update(measured.report())
        if not self._is_ahead:
            # The step waited for all of it, and nothing is under way.
            for name in ("wait_seconds", "groups_running", "groups_ready"):
                del got.metrics[f"rollout/{name}"]
        return got

    async def publish(self, step: int) -> dict[str, float]:
        """Give the engines the weights of ``step`` while no group begins and, ahead, none goes on; returns metrics."""
        metrics: dict[str, float] = {}

        async def publish() -> None:
            metrics.update(await self._engines.publish(step))

        await self.streams.update(publish)
        return metrics

    def complete(self) -> None:
        """Take note that the step's groups are trained, also where its weights were not published."""
        if self.streams.in_training:
            self.streams.trained()

    async def close(self) -> None:
        """Stop what is being sampled."""
        await self.streams.close()

    def state(self) -> dict[str, Any]:
        """Return which tasks were used up, by source, as JSON."""
        return self.streams.state_dict()

    def load_state(self, state: Mapping[str, Any] | None, position: int) -> None:
        """Go on where another run stopped.

        Args:
            state: What :meth:`state` returned; ``None`` where a checkpoint of an earlier version has none.
            position: How many groups that run had begun; counts only then.
        """
        if state is None:
            self.streams.begin_at(position)
        else:
            self.streams.load_state_dict(state)

    def _stream(self, source: Source) -> GroupStream[Any]:
        config, ratio = self._config, self._config.async_generation_ratio
        player: GroupPlayer[Any] = GroupPlayer(
            source.play,
            with_baselines=needs_baselines(config),
            spares=spares(config),
            on_member=self._show_member,
            grade=GroupRubric(config.group_reward).grade if config.group_reward else None,
        )
        replacing = source.keep is not None
        held_back = config.actor_infer.model_update_frequency - 1
        return GroupStream(
            source.tasks,
            player.play_group,
            groups_per_step=source.groups_per_step,
            ratio=ratio,
            keep=source.keep,
            most=source.groups_per_step * config.dynamic_sampling.max_batches if replacing else None,
            additional=0 if self._is_ahead else source.additional,
            in_rounds=source.in_rounds and not self._is_ahead,
            replace_failed=replacing or self._is_ahead,
            max_staleness=-int(-ratio // 1) + held_back,
        )

    def _show_groups(self, done: int, wanted: int) -> None:
        if self._is_ahead:
            self._show(done, wanted)

    def _show_member(self) -> None:
        self._members += 1
        if not self._is_ahead:
            self._show(min(self._members, self._wanted), self._wanted)

    def _show(self, done: int, wanted: int) -> None:
        self._progress.rollout_progress(done, wanted, self._sampled_tokens() - self._before)


def spares(config: RLConfig) -> Spares:
    """Return the spare members of each group."""
    return Spares(config.group_size_redundancy, config.straggler_timeout if config.group_size_redundancy else None)
