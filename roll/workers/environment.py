"""A worker that plays episodes: hundreds of environments at the same time, in threads of one process."""

from __future__ import annotations

import importlib
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from roll.common.threads import CallThreads
from roll.config import EnvManagerConfig, GeneratingArgs, PlayingConfig
from roll.distributed import worker_context
from roll.env_managers.agent import AgentEnvManager
from roll.env_managers.event_loop import EnvEventLoop
from roll.env_managers.records import EnvManagerLimits, EpisodeSpec, Timeouts
from roll.env_managers.retrying import Retries, play_again
from roll.env_managers.seats import SeatsEnvManager
from roll.env_managers.templates import Show, Templates
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import Tag, get_env_class, get_tag, make
from roll.envs.registry import tool_use
from roll.gateway import AgentEndpoint
from roll.generation import Activity, SamplingParams
from roll.schedulers.generation import GenerationScheduler
from roll.trajectories.model import Trajectory
from roll.trajectories.sealed import Contents, Parcel, seal
from roll.workers.engine_client import Engines
from roll.workers.loading import Text, load_text
from roll.workers.opponents import OpponentEngines, OpponentSeats
from roll.workers.setup import Registered, set_up

DEFAULT_TURNS = 10


class Parcels(Protocol):
    """Puts values where other processes find them."""

    async def put(self, value: Contents) -> Parcel:
        """Put a value somewhere and say where."""
        ...


class EnvironmentWorker:
    """Plays episodes of the tags of one env manager section, asking the engines for completions.

    Args:
        config: The run.
        section: ``train_env_manager`` or ``val_env_manager``.
        registered: What user code registered in the driver.
        engines: What samples.
        text: Tokenizer and renderer; ``None`` loads them.
        activity: Told when an episode works outside the engine.
        opponents: Models that have seats of games and are not trained.
        parcels: Where tokens and texts of episodes are put, so that only outlines are returned; ``None`` returns all.
    """

    def __init__(
        self,
        config: PlayingConfig,
        section: str,
        registered: Registered,
        engines: Engines,
        text: Text | None = None,
        activity: Activity | None = None,
        opponents: Mapping[str, OpponentEngines] | None = None,
        parcels: Parcels | None = None,
    ) -> None:
        self._parcels = parcels
        set_up(config, registered)
        manager: EnvManagerConfig = getattr(config, section)
        training = section == "train_env_manager"
        generating = config.actor_infer.generating_args if training else config.val_generating
        self._engines = engines
        # Several workers share the engines: their requests must not have the same names.
        context = worker_context()
        prefix = f"{uuid.uuid4().hex[:8]}/" if context.own_process else ""
        self._generation = GenerationScheduler.for_run(config, engines.clients(), prefix=prefix, part=context.part)
        self._threads: list[CallThreads | EnvEventLoop] = [CallThreads()]
        # Sampled and greedy episodes share them: what a tag bears at a time counts for both together.
        threads = {name: threads_of(config, name, self._threads) for name in manager.tags}
        greedy = generating.model_copy(update={"temperature": 0.0})
        build = partial(
            _managers, config, manager, text or load_text(config), self._generation, threads, activity=activity
        )
        self._managers = {False: build(generating), True: build(greedy)}
        self._endpoint = AgentEndpoint(config.pretrain)
        self._seats = {
            name: OpponentSeats(
                config, name, given, sampling_params(config.opponents[name].sampling(generating)), prefix, context.part
            )
            for name, given in (opponents or {}).items()
        }
        for playing in (*self._managers[False].values(), *self._managers[True].values()):
            if isinstance(playing, AgentEnvManager):
                playing.endpoint = self._endpoint
            if isinstance(playing, SeatsEnvManager):
                playing.opponents, playing.release = self._seats, self._generation.release
        self._make_env = {name: environment(name, manager) for name in manager.tags}
        self._retries = Retries(manager.max_retries, manager.retry_wait)

    async def play(self, spec: EpisodeSpec, greedy: bool) -> Trajectory:
        """Play one episode, sampled or greedily; again if it failed through no fault of the policy."""
        manager = self._managers[greedy][spec.tag]
        attempt = partial(manager.run, spec, self._make_env[spec.tag])
        retries = replace(self._retries, crashes=isinstance(manager, AgentEnvManager))
        try:
            played = await play_again(await attempt(), attempt, retries)
            return played if self._parcels is None else await seal(played, self._parcels.put)
        finally:
            await self._generation.release(spec.trajectory_id)

    async def engine_restarted(self, rank: int) -> None:
        """Take note that an engine that was dead lives again."""
        self._generation.replace(rank, self._engines.client(rank))

    async def opponent_restarted(self, name: str, rank: int) -> None:
        """Take note that an engine of an opponent that was dead lives again."""
        self._seats[name].restarted(rank)

    async def generation_metrics(self) -> dict[str, float]:
        """Return what the scheduler of this worker's requests counts."""
        return self._generation.metrics()

    async def close(self) -> None:
        """Stop the threads of the environments, and the endpoint of agent programs."""
        self._endpoint.close()
        for pool in self._threads:
            pool.close()


def environment(name: str, manager: EnvManagerConfig) -> Callable[[], Any]:
    """Return the factory of the environments of tag ``name`` under the limits of ``manager``.

    Raises:
        EnvError: If the tag or its environment type is unknown.
    """
    tag = get_tag(name)
    get_env_class(tag.env_type)
    overrides: dict[str, Any] = {}
    if manager.format_penalty is not None:
        overrides["format_penalty"] = manager.format_penalty
    if manager.max_steps is not None:
        overrides["max_steps"] = manager.max_steps
    return partial(make, tag, **overrides)


def templates(tag: Tag) -> Templates:
    """Return the templates of a tag.

    Raises:
        ValueError: If a template has an unknown placeholder or never shows the observation.
    """
    return Templates(tag.agent_system_template, tag.agent_template, cast(Show, tag.show))


def manager_class(tag: Tag) -> type[TrajectoryEnvManager]:
    """Return the env manager class of a tag: the class at ``env_manager_cls``, of the tag or of its environment's type.

    By default it is the trajectory manager.

    Raises:
        ImportError: If there is no such class.
    """
    path = tag.env_manager_cls or getattr(get_env_class(tag.env_type), "env_manager_cls", None)
    if path is None:
        return TrajectoryEnvManager
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    if not (isinstance(found, type) and issubclass(found, TrajectoryEnvManager)):
        raise ImportError(f"{path!r} is not the import path of a TrajectoryEnvManager")
    return found


def sampling_params(generating: GeneratingArgs) -> SamplingParams:
    """Return what the engine is told about sampling."""
    return SamplingParams(
        max_new_tokens=generating.max_new_tokens,
        temperature=generating.temperature,
        top_p=generating.top_p,
        top_k=generating.top_k,
        repetition_penalty=generating.repetition_penalty,
        stop_strings=tuple(generating.stop_strings or ()),
        min_p=generating.min_p,
        min_new_tokens=generating.min_new_tokens,
    )


def _managers(
    config: PlayingConfig,
    manager: EnvManagerConfig,
    text: Text,
    generation: GenerationScheduler,
    threads: Mapping[str, CallThreads | EnvEventLoop | None],
    generating: GeneratingArgs,
    *,
    activity: Activity | None,
) -> Mapping[str, TrajectoryEnvManager]:
    return {
        name: manager_class(get_tag(name))(
            renderer=text.renderer,
            generate=generation.generate,
            limits=_limits(get_tag(name), manager, config.sequence_length, generating.max_new_tokens),
            sampling=sampling_params(generating),
            templates=templates(get_tag(name)),
            timeouts=Timeouts(manager.timeouts.reset, manager.timeouts.step, manager.timeouts.generate),
            threads=threads[name],
            activity=activity,
        )
        for name in manager.tags
    }


def _limits(tag: Tag, manager: EnvManagerConfig, sequence_length: int, max_new_tokens: int) -> EnvManagerLimits:
    turns = manager.max_steps or tag.max_steps or DEFAULT_TURNS
    # Each turn of calls has one at least, so that calls take no turn away from the environment.
    beside = tool_use(tag).max_calls if tag.tools else 0
    return EnvManagerLimits(turns, sequence_length, max_new_tokens, tag.max_tokens_per_step, beside)


def threads_of(
    config: PlayingConfig, name: str, pools: list[CallThreads | EnvEventLoop]
) -> CallThreads | EnvEventLoop | None:
    """Return where the environments of a tag run.

    That is the event loop where they are awaited, else the shared pool of threads, or a pool of its own for a tag whose
    environments bear only so many calls at a time. It is ``None``, a plain call, for quick ones that draw no pictures.
    """
    tag = config.tags().get(name)
    described = get_tag(name) if tag is None else tag
    most = 1 if described.use_thread_lock else 0 if tag is None else tag.max_env_step_concurrent
    env_class = get_env_class(described.env_type)
    if inspect.iscoroutinefunction(getattr(env_class, "step", None)):
        return EnvEventLoop(most or None)
    if most:
        pools.append(CallThreads(most))
        return pools[-1]
    is_quick = getattr(env_class, "is_quick", False) is True
    is_quick = is_quick and not described.tools
    draws = described.show != "text" or described.env_config.get("render_mode") == "rgb_array"
    return None if is_quick and not draws else pools[0]
