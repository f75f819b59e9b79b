"""The roles of a configuration as a plan sees them: which devices, and what each device holds for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roll.config import ConfigError, Problem, RunConfig
from roll.config.strategies import Ability, ability_for
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.planning.activations import PassBytes, pass_bytes, working_bytes
from roll.planning.division import Division
from roll.planning.engine_memory import Engine
from roll.planning.shapes import ModelShape, shape_of
from roll.planning.training_states import States, Training, states


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """What one role asks of each of its devices.

    Attributes:
        role: Its key path.
        model: What its model is called.
        devices: Global ids of its devices; one number for a role that has none of its own.
        training: How it computes, of a role that trains or scores.
        engine: Its engine, of one that samples, or reads what is there already.
        replicas: Engines.
        reads: Whether its engine only reads, as a teacher: it gets no weights, and keeps its memory in every stage.
    """

    role: str
    model: str
    devices: tuple[int, ...]
    training: Training | None = None
    engine: Engine | None = None
    replicas: int = 1
    reads: bool = False

    @property
    def states(self) -> States:
        """What stays on a device between two passes."""
        return States() if self.training is None else states(self.training)

    @property
    def passes(self) -> PassBytes:
        """What a pass holds beside that."""
        return PassBytes(0, 0, 0) if self.training is None else pass_bytes(self.training)

    @property
    def working(self) -> int:
        """The most that it holds beside its states while it works."""
        return 0 if self.training is None else working_bytes(self.training)

    @property
    def shape(self) -> ModelShape:
        """The sizes of its model."""
        part = self.training or self.engine
        assert part is not None
        return part.shape


def role_demands(config: RunConfig, shapes: dict[str, ModelShape] | None = None) -> list[RoleDemand]:
    """Return what every role with a model asks of its devices.

    Args:
        config: A checked configuration.
        shapes: Sizes of models by name, for those that nobody here knows.

    Raises:
        ConfigError: The run trains and samples nothing, or the sizes of a model are not known.
    """
    if not isinstance(config, TrainerKeys):
        fix = "plan a run that trains or samples."
        raise ConfigError([Problem("pipeline", "it has no model of its own to plan for.", fix, config.pipeline)])
    known = dict(shapes or {})
    return [_demand(config, role, worker, known) for role, worker in _roles(config)]


def _roles(config: TrainerKeys) -> Iterator[tuple[str, WorkerConfig]]:
    for role, worker in config.worker_roles():
        if worker.strategy_args.about.answers_text or role.startswith("rewards."):
            continue
        yield role, worker


def _demand(config: TrainerKeys, role: str, worker: WorkerConfig, known: dict[str, ModelShape]) -> RoleDemand:
    name = config.model_path("actor_train" if role == "actor_infer" else role)
    if name not in known:
        known[name] = _shape(config, role, name)
    shape, devices = known[name], tuple(worker.device_mapping or range(worker.workers))
    strategy, options = worker.strategy_args.strategy_name, dict(worker.strategy_args.strategy_config or {})
    if worker.strategy_args.about.is_engine_for(ability_for(role)):
        each = worker.num_gpus_per_worker if worker.device_mapping else 1
        options = worker.strategy_args.about.divided(options, each)
        width = 2 if _is_half(config, role, shape) else 4
        # A judge may have sizes of its own.
        length = int(getattr(worker, "sequence_length", 0) or getattr(config, "sequence_length", 2048))
        requests = int(getattr(worker, "max_running_requests", 0) or getattr(config, "max_running_requests", 128))
        reads = ability_for(role) is not Ability.GENERATE
        if reads:
            requests = worker.infer_batch_size
        engine = Engine.of(strategy, options, shape, width=width, requests=requests, length=length)
        return RoleDemand(role, name, devices, engine=engine, replicas=max(1, len(devices) // each), reads=reads)
    return RoleDemand(role, name, devices, training=_training(config, role, worker, shape, options, len(devices)))


def _shape(config: TrainerKeys, role: str, name: str) -> ModelShape:
    try:
        return shape_of(name, _built_in(name))
    except ValueError as error:
        fix = "name the folder of the model, or give its config.json with --model-config FILE."
        raise ConfigError([Problem(config.model_key(role), str(error), fix, name)]) from error


def _built_in(name: str) -> str | None:
    """Return the folder of a model of this package, or of a local cache, without asking the hub."""
    from roll.models.finding import BUILT_IN, resolve_pretrain

    return resolve_pretrain(name) if name in BUILT_IN else None


def _is_half(config: TrainerKeys, role: str, shape: ModelShape) -> bool:
    chosen = config.model_args(role).dtype
    return (shape.number_format if chosen == "auto" else chosen) != "fp32"


def _training(
    config: TrainerKeys, role: str, worker: WorkerConfig, shape: ModelShape, options: dict[str, Any], ranks: int
) -> Training:
    trained = isinstance(worker, TrainWorkerConfig) and role in ("actor_train", "critic")
    strategy = worker.strategy_args.strategy_name
    arguments = worker.training_args
    longest = int(getattr(config, "sequence_length", 0) or 2048)
    rows = arguments.per_device_train_batch_size if trained else worker.infer_batch_size
    if config.pipeline == "dpo":
        rows *= 2
    # Laid end to end, rows take what they have; on average that is taken to be half of the longest.
    width = longest // 2 if worker.packs else longest
    tokens = max(longest, arguments.max_tokens_per_microbatch or rows * width)
    recomputes = not worker.model_args.disable_gradient_checkpointing
    recomputed: frozenset[str] = frozenset()
    if worker.strategy_args.about.has_own_layers:
        # Selective recomputing is of attention, which fused kernels do not hold anyway.
        granularity = options.get("recompute_granularity")
        recomputes = granularity == "full" or (granularity is None and recomputes)
        if granularity == "selective":
            recomputed |= frozenset(options.get("recompute_modules") or ())
        if options.get("moe_layer_recompute"):
            recomputed |= {"moe"}
    return Training(
        strategy=strategy,
        options=options,
        shape=shape,
        division=Division.of(strategy, options, ranks),
        half=_is_half(config, role, shape),
        trained=trained,
        lora_rank=worker.model_args.lora_rank,
        recomputes=recomputes,
        recomputed=recomputed,
        packed=worker.packs,
        tokens=tokens,
        row_tokens=longest,
        chunk=worker.log_prob_chunk_size,
        scores_vocabulary=config.head(role) == "language",
        attention="matrix" if worker.model_args.attn_implementation == "eager" else "fused",
    )
