"""What is known of the engines and trainers that a configuration may name, before any of them is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, Final

from roll.common.registry import Place, Registry
from roll.config.errors import Absent, ConfigError, Problem, choose_from


class Ability(StrEnum):
    """What a strategy is for."""

    TRAIN = "train"
    GENERATE = "generate"
    SCORE = "score"
    """Forward passes only: log-probs of a reference model, values, rewards."""
    SCORE_TOKENS = "score_tokens"
    """Log-probs of given tokens and of the likeliest ones in their places, whether or not there are hidden states."""


Named = str | Callable[..., Any]
"""A function, or where it is: ``module:function``, which is imported when it is first called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyDescription:
    """All that the rest of the library knows of a strategy. Making one imports no engine.

    Attributes:
        name: As a configuration says it.
        engine: Makes a :class:`roll.strategies.base.GenerationStrategy` of a :class:`roll.strategies.jobs.EngineJob`;
            ``None`` if it samples nothing.
        trainer: Makes a :class:`roll.strategies.base.TrainStrategy` of a :class:`roll.strategies.jobs.TrainerJob`.
        scorer: Makes a :class:`roll.strategies.base.ScoreStrategy` of a :class:`roll.strategies.jobs.ScorerJob`.
        check_options: Called with a ``strategy_config`` and its key path; raises :class:`ConfigError`. ``None`` takes
            any.
        refusals: Called with :class:`roll.generation.SamplingParams`; yields what the engine cannot do, each a
            :class:`roll.strategies.generation.sampling_limits.Refusal`. ``None`` samples everything.
        package: The module that it needs beyond this project's own.
        kernels: A module that it needs too, and that may be installed without loading where there is no GPU.
        install: How to install that, for people.
        instead: The strategy to use where it is not installed.
        distributions: What its package is called when it is installed: a run writes down their versions.
        spans_processes: Whether the workers of a role hold one model together, which takes a process for each.
        needs_process_group: Whether it wants a ``torch.distributed`` group even for one rank.
        needs_gpu: Whether it computes on CUDA devices only.
        gpu_package: A module that it needs on those, beyond ``package``.
        gpu_install: How to install that, for people.
        takes_fp16: Whether it scores with weights in fp16.
        trains_critics: A trainer: whether it takes a model that predicts values.
        adapts: A trainer: whether it trains LoRA adapters.
        takes_optimizer_state: A trainer: whether it can begin with the optimiser of another run.
        saves_megatron: A trainer: whether it writes models in Megatron-Core's format
            (:class:`roll.strategies.base.HasMegatronModel`).
        saves_reward_models: A trainer: whether what it saves of a model that predicts values scores elsewhere.
        distils: A trainer: whether it measures every divergence from any number of teachers.
        packs: A trainer or scorer: whether it lays sequences end to end (``use_sequence_packing``).
        shares_prefixes: Likewise: whether it computes equal beginnings of sequences once (``share_prefixes``).
        shares_model: An engine: whether it can sample from a model of its own process. A trainer: whether it keeps its
            model whole in one, so that such an engine can.
        scores_tokens: An engine: whether it says how likely given tokens are
            (:class:`roll.strategies.base.ScoresTokens`).
        sees: Whether it takes pictures beside tokens.
        computes_as_trainer: An engine: whether it computes in the number format and with the attention of the trainer.
        parallel_sizes: An engine: the options with the parts of each matrix, and then of the stack of layers.
        answers_text: An engine: whether it takes messages and answers text, without token ids and log-probs. It can be
            measured, and nothing can be trained on what it says.
        random_weights: An engine: the option, and its value, that leaves it without weights until the first update.
        own_weights: A trainer or scorer: the option that names weights to begin with in place of those of its model.
        memory: A trainer or scorer: makes of a :class:`roll.planning.training_states.Training` the ``States`` that its
            fullest rank keeps. ``None``: a whole model in one process.
        smaller: A trainer: yields options by which it keeps less, of the path of its options and a ``Training``.
        has_own_layers: A trainer or scorer: whether it computes with layers of its own, which ranks may divide by
            matrices and by stages (``tensor_model_parallel_size``), and whose options say what is computed again.
        autocasts: A trainer: whether in one process its weights stay in fp32 and each operation chooses its format.
    """

    name: str
    engine: Named | None = None
    trainer: Named | None = None
    scorer: Named | None = None
    check_options: Named | None = None
    refusals: Named | None = None
    package: str = ""
    kernels: str = ""
    install: str = "install it"
    instead: str = ""
    distributions: tuple[str, ...] = ()
    spans_processes: bool = False
    needs_process_group: bool = False
    needs_gpu: bool = False
    gpu_package: str = ""
    gpu_install: str = "install it"
    takes_fp16: bool = True
    trains_critics: bool = False
    adapts: bool = False
    takes_optimizer_state: bool = False
    saves_megatron: bool = False
    saves_reward_models: bool = False
    distils: bool = False
    packs: bool = False
    shares_prefixes: bool = False
    shares_model: bool = False
    scores_tokens: bool = False
    sees: bool = False
    computes_as_trainer: bool = False
    parallel_sizes: tuple[str, ...] = ()
    answers_text: bool = False
    random_weights: tuple[str, object] | None = None
    own_weights: str = ""
    memory: Named | None = None
    smaller: Named | None = None
    has_own_layers: bool = False
    autocasts: bool = False

    def __post_init__(self) -> None:
        if not self.abilities:
            raise ValueError(f"strategy {self.name!r} does nothing: give it an engine, a trainer or a scorer")
        if self.scores_tokens and self.engine is None:
            raise ValueError(f"strategy {self.name!r} has no engine that could score tokens: give it one, or a scorer")

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it is for."""
        scores = self.scorer is not None
        able = {
            Ability.GENERATE: self.engine is not None,
            Ability.TRAIN: self.trainer is not None,
            Ability.SCORE: scores,
            Ability.SCORE_TOKENS: scores or self.scores_tokens,
        }
        return frozenset(ability for ability, has in able.items() if has)

    def is_engine_for(self, ability: Ability) -> bool:
        """Return whether its engine serves a role that asks for this: one that samples, or scores without a scorer."""
        return ability is Ability.GENERATE or (ability is Ability.SCORE_TOKENS and self.scorer is None)

    def parts(self, options: Mapping[str, Any]) -> int:
        """Return among how many processes an engine with these options divides its model."""
        return math.prod(options.get(key) or 1 for key in self.parallel_sizes)

    def divided(self, options: Mapping[str, Any] | None, devices: int) -> dict[str, Any]:
        """Return the options of an engine that has ``devices``: unless they say otherwise, they share its matrices."""
        given = dict(options or {})
        if devices > 1 and self.parallel_sizes and not any(key in given for key in self.parallel_sizes):
            given[self.parallel_sizes[0]] = devices
        return given

    def starts_with_random_weights(self, options: Mapping[str, Any] | None) -> bool:
        """Return whether an engine with these options must be given weights before it answers anything."""
        if self.random_weights is None:
            return False
        key, value = self.random_weights
        return (options or {}).get(key) == value


_GENERATION: Final = "roll.strategies.generation"
_TRAINING: Final = "roll.strategies.training"

STRATEGIES: Final[Registry[StrategyDescription]] = Registry(
    "strategy",
    built_in={
        "hf_infer": f"{_GENERATION}.hf_infer.description:HF_INFER",
        "vllm": f"{_GENERATION}.vllm.description:VLLM",
        "sglang": f"{_GENERATION}.sglang.description:SGLANG",
        "openai_endpoint": f"{_GENERATION}.openai_endpoint.description:OPENAI_ENDPOINT",
        "fsdp_train": f"{_TRAINING}.pytorch.description:FSDP_TRAIN",
        "fsdp_infer": f"{_TRAINING}.pytorch.description:FSDP_INFER",
        "deepspeed_train": f"{_TRAINING}.deepspeed.description:DEEPSPEED_TRAIN",
        "deepspeed_infer": f"{_TRAINING}.deepspeed.description:DEEPSPEED_INFER",
        "megatron_train": f"{_TRAINING}.megatron.description:MEGATRON_TRAIN",
        "megatron_infer": f"{_TRAINING}.megatron.description:MEGATRON_INFER",
    },
)
"""Every strategy that a configuration may name: those that come with this package, and where each describes itself."""


def register_strategy(description: StrategyDescription) -> None:
    """Make an engine or a trainer of your own a name in configurations.

    A configuration names the module that calls this in ``strategy_modules``, so that worker processes know it too.

    Raises:
        roll.common.registry.DuplicateNameError: Another strategy has this name.
    """
    builders = [each for each in (description.engine, description.trainer, description.scorer) if each is not None]
    first = builders[0]
    place = Place(*first.partition(":")[::2]) if isinstance(first, str) else Place.of(first)
    STRATEGIES.add(description.name, description, place=place)


def named(function: Named) -> Callable[..., Any]:
    """Return a function that a description names, importing it now if it must be.

    Raises:
        ImportError: It cannot be imported.
    """
    if not isinstance(function, str):
        return function
    found: Callable[..., Any] = resolve_name(function)
    return found


ROLE_ABILITY: Mapping[str, Ability] = {
    "actor_train": Ability.TRAIN,
    "critic": Ability.TRAIN,
    "actor_infer": Ability.GENERATE,
    "reference": Ability.SCORE,
    "teacher": Ability.SCORE_TOKENS,
    "teachers": Ability.SCORE_TOKENS,
    "reward": Ability.SCORE,
    "judges": Ability.GENERATE,
    "opponents": Ability.GENERATE,
}
"""What the strategy of a role must be able to do."""


FROZEN: Final = ("reference", "teacher", "teachers")
"""How the key paths of roles begin whose models score and are not trained."""


def ability_for(role: str) -> Ability:
    """Return what the strategy of a role, by its key path, must be able to do."""
    return ROLE_ABILITY[role.partition(".")[0]]


def strategies_for(role: str) -> list[str]:
    """Return the strategy names that can serve ``role``."""
    return [name for name in STRATEGIES if ability_for(role) in STRATEGIES.get(name).abilities]


def takes_processes(name: str, role: str) -> bool:
    """Tell whether several workers of a role with strategy ``name`` need a process each."""
    return name in STRATEGIES and (STRATEGIES.get(name).spans_processes or role.partition(".")[0] in FROZEN)


def availability_problem(name: str, *, role: str, world_size: int = 1, cluster: str = "ray") -> Problem | None:
    """Return what stands in the way of running strategy ``name`` in ``role``, or ``None``.

    Args:
        name: A strategy name.
        role: Key path of the role: ``actor_train``, ``reference``, ``teachers.math``.
        world_size: Number of workers of the role.
        cluster: ``local`` or ``ray``.
    """
    path = f"{role}.strategy_args.strategy_name"
    if name not in STRATEGIES:
        return Problem(path, "no strategy has this name.", choose_from(name, STRATEGIES), name)
    about = STRATEGIES.get(name)
    if ability_for(role) not in about.abilities:
        usable = strategies_for(role)
        return Problem(path, f"this strategy cannot serve {role}.", f"use one of {', '.join(usable)}.", name)
    if about.package and not is_installed(about.package):
        fix = f"{about.install}{f', or set {path}={about.instead}' if about.instead else ''}."
        return Absent(path, f"it needs the Python package {about.package}, which is not installed.", fix, name)
    if cluster == "local" and world_size > 1 and takes_processes(name, role):
        message = f"{role} has {world_size} workers, which need a process each, and cluster: local is one process."
        fix = f"set cluster=ray, or {role}.world_size=1 and one device at most."
        return Problem(f"{role}.world_size", message, fix, world_size)
    return None


def is_installed(module: str) -> bool:
    """Tell whether a module, which may be in a package, can be imported; imports nothing but such a package."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require_available(name: str, *, role: str, world_size: int = 1) -> None:
    """Raise unless this version can run strategy ``name`` in ``role``.

    Raises:
        ConfigError: The strategy is unknown, unfit for the role, or its package is not installed; says what to use
            instead.
    """
    problem = availability_problem(name, role=role, world_size=world_size)
    if problem is not None:
        raise ConfigError([problem])
