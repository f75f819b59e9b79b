"""Plays episodes of agents through a real gateway, with answers that a test writes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from manager_fakes import Activity

from roll.common.threads import CallThreads
from roll.env_managers import EnvManagerLimits, EpisodeSpec, Timeouts
from roll.env_managers.agent import AgentEnvManager
from roll.envs import Tag, make
from roll.gateway import AgentEndpoint
from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer
from roll.trajectories.model import Trajectory


@functools.cache
def renderer() -> ChatRenderer:
    return ChatRenderer(load_tokenizer("toy"))


def answer(said: str) -> Completion:
    """A policy's answer, with the token that ends it."""
    ids = [*renderer().encoder.encode(said), *renderer().stop_token_ids[:1]]
    return Completion(ids, [-0.5] * len(ids), "stop", (2, 2))


def play_agents(
    tag: Tag,
    specs: Sequence[EpisodeSpec],
    generate: Callable[[GenerationRequest], Any],
    limits: EnvManagerLimits,
    timeouts: Timeouts,
    *,
    at_a_time: int = 64,
    activity: Activity | None = None,
) -> list[Trajectory]:
    """Play episodes at the same time, and see that none is still counted as outside when they are over."""
    activity, endpoint, threads = activity or Activity(), AgentEndpoint("toy"), CallThreads(at_a_time)
    manager = AgentEnvManager(
        renderer=renderer(), generate=generate, limits=limits, timeouts=timeouts, threads=threads, activity=activity
    )
    manager.endpoint = endpoint

    async def all_of_them() -> list[Trajectory]:
        return list(await asyncio.gather(*(manager.run(spec, lambda: make(tag)) for spec in specs)))

    try:
        return asyncio.run(all_of_them())
    finally:
        assert activity.outside == 0
        endpoint.close()
        threads.close()
