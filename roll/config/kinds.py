"""Kinds of run by name: which keys each has, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Final

from omegaconf import DictConfig, ListConfig

from roll.common.registry import Registry, UnknownNameError
from roll.config.agentic import AgenticConfig
from roll.config.distill import DistillConfig, PromptDistillConfig
from roll.config.distill_rows import RowDistillConfig
from roll.config.dpo import DPOConfig
from roll.config.errors import ConfigError, Problem
from roll.config.evaluation import EvaluationConfig
from roll.config.reward_model import RewardModelConfig
from roll.config.rlvr import RLVRConfig
from roll.config.run import RunConfig
from roll.config.sample import SampleConfig
from roll.config.sft import SFTConfig
from roll.config.staged import StagedConfig
from roll.config.user_modules import import_problems

STAGES: Final = "stages"
"""The key that makes a configuration one of several stages; ``pipeline`` is then that of its stages."""
STAGED: Final = "multi_stage"
"""The kind of run that it then is."""

Runner = Callable[[Any], Any] | str
"""Called with a checked configuration; or ``module:function``, which is imported when a configuration is good."""


@dataclass(frozen=True, slots=True)
class PipelineKind:
    """A kind of run.

    Attributes:
        name: What ``pipeline`` says in a configuration.
        config: The model of its keys.
        run: What runs it.
        check: What says before it starts what is wrong (ConfigError) or has no effect (sentences). ``None``: the
            ``check`` of the class whose method ``run`` is, if there is one.
    """

    name: str
    config: type[RunConfig]
    run: Runner
    check: Runner | None = None


PIPELINES: Final[Registry[PipelineKind]] = Registry(
    "pipeline",
    advice="To add your own, call register_pipeline({name!r}, ...) in a module, and name that in pipeline_modules.",
)
"""What ``pipeline`` accepts."""


def register_pipeline(name: str, *, config: type[RunConfig], run: Runner, check: Runner | None = None) -> None:
    """Make a kind of run a name for ``pipeline``.

    Args:
        name: The name.
        config: The model of its keys, derived from :class:`roll.config.RunConfig`.
        run: Called with a checked configuration of that model, such as
            ``MyRun.start``; or ``module:function``, or ``module:MyRun.start``.
        check: Called with it before: raises a :class:`ConfigError` with every problem, returns what has no effect as
            sentences. ``None``: the ``check`` of the class whose method ``run`` is, if there is one.

    Raises:
        DuplicateNameError: The name is taken.
    """
    PIPELINES.add(name, PipelineKind(name, config, run, check))


def runner(run: Runner) -> Callable[[Any], Any]:
    """Return what runs a configuration, importing it now if it must be."""
    return resolve_name(run) if isinstance(run, str) else run


def check_before(config: RunConfig) -> list[str]:
    """Check what the run of a configuration checks before it starts; return what has no effect, as sentences.

    Raises:
        ConfigError: Lists every problem.
    """
    kind = kind_for(config)
    if kind.check is not None:
        return list(runner(kind.check)(config))
    check = getattr(getattr(runner(kind.run), "__self__", None), "check", None)
    return [] if check is None else list(check(config))


def named_kind(composed: DictConfig) -> PipelineKind | None:
    """Return the kind that a composed configuration names, ``None`` if it names none; imports ``pipeline_modules``.

    Raises:
        ConfigError: There is no such kind, or a module cannot be imported.
    """
    stages = composed.get(STAGES)
    name = STAGED if stages and not isinstance(stages, str) else composed.get("pipeline")
    if name is None:
        return None
    modules = composed.get("pipeline_modules") or ()
    problems = list(
        import_problems("pipeline_modules", modules if isinstance(modules, ListConfig | tuple) else [modules])
    )
    if problems:
        raise ConfigError(problems)
    try:
        return PIPELINES.get(str(name))
    except UnknownNameError as error:
        known, _, advice = str(error).partition(". ")
        raise ConfigError([Problem("pipeline", f"{known}.", advice, name)]) from error


def kind_to_run(composed: DictConfig, own: PipelineKind) -> PipelineKind:
    """Return the kind to run: the one that the configuration names, else that of the program.

    A program that reads such configurations for a purpose of its own keeps to that: an evaluation of an RLVR run.

    Raises:
        ConfigError: There is no such kind.
    """
    named = named_kind(composed)
    return own if named is None or issubclass(own.config, named.config) else named


def kind_with(config: type[RunConfig]) -> PipelineKind:
    """Return the kind of run whose keys a model has."""
    return next(kind for kind in map(PIPELINES.get, PIPELINES) if kind.config is config)


def kind_for(config: RunConfig) -> PipelineKind:
    """Return the kind that runs a checked configuration: that of its model, or of the nearest that its model extends.

    Where several kinds have that model, the one that the configuration names.

    Raises:
        LookupError: There is no such kind.
    """
    kinds = [PIPELINES.get(name) for name in PIPELINES]
    for model in type(config).__mro__:
        fitting = [kind for kind in kinds if kind.config is model]
        if fitting:
            return next((kind for kind in fitting if kind.name == config.pipeline), fitting[0])
    raise LookupError(f"no kind of run has the keys of {type(config).__name__}; register_pipeline makes it one.")


register_pipeline("agentic", config=AgenticConfig, run="roll.pipelines.agentic:AgenticPipeline.start")
register_pipeline("rlvr", config=RLVRConfig, run="roll.pipelines.rlvr:RlvrPipeline.start")
register_pipeline(
    "evaluation",
    config=EvaluationConfig,
    run="roll.pipelines.evaluation:run_evaluation",
    check="roll.pipelines.checks.rlvr:check_evaluation",
)
register_pipeline("sft", config=SFTConfig, run="roll.pipelines.sft:SFTPipeline.start")
register_pipeline("dpo", config=DPOConfig, run="roll.pipelines.dpo:DPOPipeline.start")
register_pipeline("reward_model", config=RewardModelConfig, run="roll.pipelines.reward_model:RewardModelPipeline.start")
register_pipeline("distill", config=DistillConfig, run="roll.pipelines.distill:DistillPipeline.start")
register_pipeline(
    "distill_prompts", config=PromptDistillConfig, run="roll.pipelines.distill:PromptDistillPipeline.start"
)
register_pipeline("distill_rows", config=RowDistillConfig, run="roll.pipelines.distill_rows:RowDistillPipeline.start")
register_pipeline("sample", config=SampleConfig, run="roll.pipelines.sample:SamplePipeline.start")
register_pipeline(
    STAGED,
    config=StagedConfig,
    run="roll.pipelines.staged:run_stages",
    check="roll.pipelines.checks.stages:check_stages",
)
