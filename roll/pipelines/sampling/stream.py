"""Sampling that runs ahead of training: one stream of groups without end, and the pause around new weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roll.config import PipelineConfig
from roll.pipelines.reporting.metrics import Throughput
from roll.pipelines.roles.engines import EngineRole
from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.group_streams import GroupStreams
from roll.schedulers.members import Spares

Stream = GroupStream[Any] | GroupStreams


@dataclass
class Ahead:
    """Gives each step its groups while the next ones are sampled already.

    Attributes:
        stream: What samples.
        engines: What it samples with.
        sampled_tokens: Says how many tokens were sampled so far.
    """

    stream: Stream
    engines: EngineRole
    sampled_tokens: Callable[[], int]
    _since: float = field(default_factory=time.perf_counter)
    _before: int = 0

    async def next(
        self, step: int, on_progress: Callable[[int, int, int], None]
    ) -> tuple[StepGroups, dict[str, float]]:
        """Wait for the groups of a step.

        Args:
            step: Number of the step.
            on_progress: Told finished and wanted groups, and tokens sampled since the step before.

        Returns:
            The groups, and metrics; tokens are counted over the whole step, for sampling goes on all the time.
        """

        def show(done: int, wanted: int) -> None:
            on_progress(done, wanted, self.sampled_tokens() - self._before)

        got = await self.stream.next(step, step - 1, show)
        now, sampled = time.perf_counter(), self.sampled_tokens()
        measured = Throughput()
        measured.add(got.groups, sampled - self._before, now - self._since)
        self._since, self._before = now, sampled
        return got, {**got.metrics, **measured.report()}

    async def publish(self, step: int) -> dict[str, float]:
        """Freeze the engines, give them the weights of ``step``, and let them go on."""
        metrics: dict[str, float] = {}

        async def publish() -> None:
            metrics.update(await self.engines.publish(step))

        await self.stream.update(publish)
        return metrics

    def load_state(self, state: dict[str, Any] | None, position: int) -> None:
        """Go on where another run stopped.

        Args:
            state: What its stream said of itself; ``None`` if it did not sample ahead.
            position: How many groups it had begun.
        """
        if state is None:
            self.stream.begin_at(position)
        else:
            self.stream.load_state_dict(state)


def stream_options(config: PipelineConfig) -> dict[str, Any]:
    """Return what streams of every pipeline have in common."""
    held_back = config.actor_infer.model_update_frequency - 1
    ratio = config.async_generation_ratio
    return {"ratio": ratio, "max_staleness": -int(-ratio // 1) + held_back}


def spares(config: PipelineConfig) -> Spares:
    """Return the spare members of each group."""
    return Spares(config.group_size_redundancy, config.straggler_timeout if config.group_size_redundancy else None)
