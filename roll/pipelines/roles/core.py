"""The models of a run and the engines that sample from them: what every pipeline is built on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial

from transformers import PreTrainedModel

from roll.algorithms.distillation import Divergence
from roll.config import SamplingConfig
from roll.config.strategies import FROZEN
from roll.distributed import Cluster, LocalGroup, WorkerGroup, WorkerSpec
from roll.generation import Activity
from roll.pipelines.roles.device_sharing import DeviceSharing
from roll.pipelines.roles.engines import EngineRole
from roll.pipelines.roles.models import ScoreRole, TrainRole
from roll.pipelines.roles.opponents import OpponentRole, start_opponents
from roll.pipelines.roles.pool import WorkerPool
from roll.pipelines.roles.weight_check import WeightCheck, check_options
from roll.schedulers.generation import GenerationScheduler, waits_for_quiet
from roll.workers.classes import worker_class
from roll.workers.engine import wire_dtype
from roll.workers.loading import Text, require_same_tokens
from roll.workers.setup import Registered


@dataclass(kw_only=True)
class Generating(Text):
    """What asks the engines.

    Attributes:
        generation: Routes the requests of this process to the engines.
        activity: Tells the engine when everything is quiet; ``None`` for a run that need not be reproducible bit by
            bit, or cannot be.
    """

    generation: GenerationScheduler
    activity: Activity | None


@dataclass(kw_only=True)
class Sampler(Generating):
    """What samples from a policy.

    Attributes:
        cluster: Where workers live.
        registered: What user code registered, for workers in other processes.
        engines: Sample from the policy (``actor_infer``).
        opponents: Models that have seats of games and are not trained.
        pools: Workers of which any can do a piece of work: environments, graders.
        judges: Sample from the models that grade, by name.
    """

    cluster: Cluster
    registered: Registered
    engines: EngineRole
    opponents: Mapping[str, OpponentRole] = field(default_factory=dict)
    pools: list[WorkerPool] = field(default_factory=list)
    judges: dict[str, EngineRole] = field(default_factory=dict)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Meanwhile, make engines that die again, those of judges and opponents too."""
        async with AsyncExitStack() as watches:
            for engines in self._engine_roles():
                await watches.enter_async_context(engines.watched())
            yield

    def _engine_roles(self) -> list[EngineRole]:
        return [self.engines, *self.judges.values(), *(each.engines for each in self.opponents.values())]

    def cluster_metrics(self) -> dict[str, float]:
        """Return how many workers were made again since the start; nothing where all share a process."""
        if isinstance(self.engines.group, LocalGroup):
            return {}
        return {
            "cluster/engine_restarts": float(sum(engines.restarts for engines in self._engine_roles())),
            "cluster/worker_restarts": float(sum(pool.restarts for pool in self.pools)),
        }

    def pool(self, group: WorkerGroup) -> WorkerPool:
        """Return the pool of a group whose workers ask the engines, and are told when one of those is made again."""
        pool = WorkerPool(group)
        self.engines.on_restart(partial(pool.tell, "engine_restarted"))
        self.pools.append(pool)
        return pool


@dataclass(kw_only=True)
class Core(Sampler):
    """The roles of a training run.

    Attributes:
        trainer: The policy being trained (``actor_train``).
        critic: The value model, where the estimator needs one.
        frozen: Models that score and are not trained, by role: the reference, teachers.
        devices: Who has the devices that roles share.
        weight_check: Compares engines with the trainer after new weights.
    """

    trainer: TrainRole
    critic: TrainRole | None
    frozen: Mapping[str, ScoreRole]
    devices: DeviceSharing
    weight_check: WeightCheck

    @property
    def reference(self) -> ScoreRole | None:
        """The frozen policy, where a term needs it."""
        return self.frozen.get("reference")


async def build_sampler(
    config: SamplingConfig,
    text: Text,
    cluster: Cluster,
    trainers: TrainRole | None = None,
    *,
    stand_in: WorkerSpec | None = None,
) -> Sampler:
    """Start the engines.

    Args:
        config: The run.
        text: Tokenizer and renderer.
        cluster: Where workers live.
        trainers: What the engines' weights come from; an engine in the same process samples from the very model.
        stand_in: What is started in place of the engines, with their arguments before its own.

    Raises:
        ConfigError: If the model cannot be loaded.
    """
    registered = Registered.here()
    activity = Activity() if waits_for_quiet(config) else None
    shared = _shared_model(config, trainers)
    spec = WorkerSpec(cls=worker_class(config, "actor_infer")) if stand_in is None else stand_in
    spec = replace(spec, args=(config, registered, shared, activity))
    engines = EngineRole(await cluster.start("actor_infer", spec), None if trainers is None else trainers.group, config)
    generation = GenerationScheduler.for_run(config, engines.engines.clients())

    async def made_again(rank: int) -> None:
        generation.replace(rank, engines.engines.client(rank))

    engines.on_restart(made_again)
    opponents = {}
    if stand_in is None:
        require_same_tokens(config, text, [f"opponents.{name}" for name in config.opponent_roles])
        opponents = await start_opponents(config, cluster, registered, activity)
    return Sampler(
        opponents=opponents,
        tokenizer=text.tokenizer,
        renderer=text.renderer,
        cluster=cluster,
        registered=registered,
        engines=engines,
        generation=generation,
        activity=activity,
    )


async def build_core(config: SamplingConfig, text: Text, cluster: Cluster) -> Core:
    """Start the models of a configuration that a preflight check has passed.

    Raises:
        ConfigError: If a model cannot be loaded.
    """
    registered = Registered.here()

    async def train_role(role: str) -> TrainRole:
        spec = WorkerSpec(cls=worker_class(config, role), args=(config, role, registered))
        return await TrainRole.over(await cluster.start(role, spec))

    async def critic() -> TrainRole | None:
        return await train_role("critic") if "critic" in cluster.plan.roles else None

    async def frozen_role(role: str) -> ScoreRole:
        spec = WorkerSpec(cls=worker_class(config, role), args=(config, registered, role))
        return await ScoreRole.over(await cluster.start(role, spec))

    async def frozen_roles() -> dict[str, ScoreRole]:
        return dict(zip(names, await asyncio.gather(*map(frozen_role, names)), strict=True))

    names = [role for role in cluster.plan.roles if role.partition(".")[0] in FROZEN]
    require_same_tokens(config, text, names)
    trainer = await train_role("actor_train")
    sampler, values, frozen = await asyncio.gather(
        build_sampler(config, text, cluster, trainer), critic(), frozen_roles()
    )
    if config.measured_from or config.measures_top_k:
        divergence = Divergence(*config.measured_by)
        await trainer.measure_from(*(frozen[role] for role in config.measured_from), divergence=divergence)
    models = {"actor_train": trainer, "critic": values, **frozen}
    groups = {role: model.group for role, model in models.items() if model is not None}
    shared = cluster.plan.sharing("actor_infer")
    devices = DeviceSharing(groups, sampler.engines.group, shared)
    sampler.engines.trainer_weights = devices.trainer_weights
    options = check_options(config, text.plain_tokens(), wire_dtype(config), devices.needed)
    return Core(
        **{each.name: getattr(sampler, each.name) for each in fields(sampler)},
        trainer=trainer,
        critic=values,
        frozen=frozen,
        devices=devices,
        weight_check=WeightCheck(sampler.engines, trainer, options),
    )


def _shared_model(config: SamplingConfig, trainers: TrainRole | None) -> PreTrainedModel | None:
    """Return the trainer's own model where an engine can sample from it: one process, one engine, always up to date."""
    infer, train = config.actor_infer, config.actor_train
    if trainers is None or not isinstance(trainers.group, LocalGroup) or infer.workers != 1:
        return None
    able = all(worker.strategy_args.about.shares_model for worker in (infer, train))
    plain = able and train.model_args.lora_rank is None
    always = infer.model_update_frequency == 1 and config.async_generation_ratio == 0
    return trainers.group.worker(0).model if plain and always else None
