"""From a composed configuration to a checked one."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from roll.config.agentic import AgenticConfig
from roll.config.base import OUTPUT
from roll.config.choosing_ray import with_processes
from roll.config.composing import change, compose, from_mapping
from roll.config.dialects import translate
from roll.config.dialects.paths import put
from roll.config.errors import ConfigError, ConfigWarning, Problem
from roll.config.evaluation import EvaluationConfig
from roll.config.kinds import PIPELINES, STAGES, PipelineKind, named_kind
from roll.config.origins import Origins
from roll.config.resolving import resolve
from roll.config.rl import RLConfig
from roll.config.rlvr import RLVRConfig
from roll.config.run import RunConfig
from roll.config.sources import Sources
from roll.config.staged import Stage, StagedConfig, StageKeys
from roll.config.staging import overlay, without_effect
from roll.config.validation import valid_keys, validation_problems

Config = TypeVar("Config", bound=RunConfig)

_MARKS: Final = {
    "sft_train": "sft",
    "chosen_key": "dpo",
    "student": "distill_rows",
    "student_train": "distill_prompts",
    "kd_objective": "distill_rows",
}
"""Keys that only one kind of run has, where a file does not name its kind."""

_COMPOSITION_KEYS = ("hydra", "defaults")
"""Keys that are for Hydra: they can be left over in a file that was read without it."""


@overload
def load(
    config: str | Path | DictConfig | Mapping[str, Any],
    /,
    *,
    kind: type[Config],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    source: str | None = None,
    command: Sequence[str] | None = None,
    program: Sequence[str] = (),
    **changes: Any,
) -> Config: ...


@overload
def load(
    config: str | Path | DictConfig | Mapping[str, Any],
    /,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    source: str | None = None,
    command: Sequence[str] | None = None,
    program: Sequence[str] = (),
    **changes: Any,
) -> Any: ...


def load(
    config: str | Path | DictConfig | Mapping[str, Any],
    /,
    *,
    kind: type[Config] | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    source: str | None = None,
    command: Sequence[str] | None = None,
    program: Sequence[str] = (),
    **changes: Any,
) -> Any:
    """Return a checked configuration, from a name, a file or a mapping. Loads no model.

    Example:
        >>> load("sokoban", max_steps=5)
        >>> load("my_configs/mine.yaml", overrides={"actor_train.training_args.learning_rate": 3e-5})
        >>> load("rlvr_math", overrides=["actor_train.training_args.learning_rate=3e-5", "seed=1"])
        >>> load({"train_env_manager": {"tags": ["my_env"]}, "max_steps": 10})

    Args:
        config: The name of a configuration (see :func:`roll.config.composing.compose`), the path of a YAML file, or a
            mapping.
        kind: The model to validate with. ``None``: that of ``pipeline``; where that is not said, the one whose keys a
            file uses, and for a mapping ``AgenticConfig``.
        overrides: Further keys: texts as on the command line, or a mapping whose keys may have dots.
        source: Path of the primary YAML file of a mapping, so that a problem can name file and line.
        command: See :func:`check`.
        program: See there.
        changes: Further keys at the top level, ``max_steps=5``.

    Returns:
        The checked configuration, of type ``kind``.

    Raises:
        ConfigError: Something is wrong; the error lists every problem with key path, value, origin and fix.

    Warns:
        ConfigWarning: A key has no effect, such as a reference model that no term uses.
    """
    texts = [] if isinstance(overrides, Mapping) else list(overrides)
    values = {**(overrides if isinstance(overrides, Mapping) else {}), **changes}
    if isinstance(config, str | Path):
        composed, path = compose(config, texts)
        change(composed, values)
        kind, source = kind or kind_of(composed), str(path)  # type: ignore[assignment]
    else:
        composed = config if isinstance(config, DictConfig) else from_mapping(config)
        dotted = OmegaConf.to_container(OmegaConf.from_dotlist([text.lstrip("+") for text in texts]), resolve=False)
        change(composed, {**dotted, **values})  # type: ignore[dict-item]
    written = [*texts, *(f"{key}={value}" for key, value in values.items())]
    if kind is None:
        named = named_kind(composed)
        found: type[Any] = named.config if named else AgenticConfig
    else:
        found = kind
    return check(composed, kind=found, source=source, overrides=written, command=command, program=program)


def kind_of(composed: DictConfig) -> type[RunConfig]:
    """Return the model of a file: of the kind that it names, else by its keys, those of other guides included.

    Raises:
        ConfigError: It names a kind that there is not.
    """
    kind = named_kind(composed)
    if kind is not None:
        return kind.config
    data = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(data, dict)
    named = {str(key): value for key, value in data.items()}
    if named.keys() & (AgenticConfig.model_fields.keys() - EvaluationConfig.model_fields.keys()):
        return AgenticConfig
    marked = next((name for key, name in _MARKS.items() if key in named), None)
    if marked is not None:
        return PIPELINES.get(marked).config
    native = translate(named, EvaluationConfig).data
    if not native.keys() & (EvaluationConfig.model_fields.keys() - RLConfig.model_fields.keys()):
        return RLVRConfig if _trains_on_files(native) else AgenticConfig
    return RLVRConfig if _trains_on_files(native) and native.get("recorded") is None else EvaluationConfig


def kind_to_measure(
    config: str | Path | Mapping[str, Any],
) -> type[AgenticConfig] | type[EvaluationConfig]:
    """Return the model by which a policy is measured on what a configuration validates with.

    Raises:
        ConfigError: There is no such configuration, or it names a kind that there is not.
    """
    return AgenticConfig if issubclass(kind_of(_composed(config)), AgenticConfig) else EvaluationConfig


def start_of(config: str | Path | Mapping[str, Any]) -> str:
    """Return the policy that a configuration starts from.

    Raises:
        ConfigError: There is no such configuration.
    """
    named = OmegaConf.select(_composed(config), "pretrain")
    return str(AgenticConfig.model_fields["pretrain"].default if named is None else named)


def _composed(config: str | Path | Mapping[str, Any]) -> DictConfig:
    return from_mapping(config) if isinstance(config, Mapping) else compose(config)[0]


def _trains_on_files(native: Mapping[str, Any]) -> bool:
    data: Any = native
    for key in ("actor_train", "data_args"):
        data = data.get(key) if isinstance(data, Mapping) else None
    return isinstance(data, Mapping) and any(data.get(key) is not None for key in ("file_name", "custom_cls"))


def check(
    config: DictConfig,
    *,
    kind: type[Config],
    source: str | None = None,
    overrides: Sequence[str] = (),
    command: Sequence[str] | None = None,
    program: Sequence[str] = (),
) -> Config:
    """Resolve interpolations, validate every key, and check that the keys fit together.

    Sections in the spelling of other guides (:mod:`roll.config.dialects`) become native keys first.

    Args:
        config: The composed configuration.
        kind: The model to validate with.
        source: Path of the primary YAML file, so that a problem can name file and line.
        overrides: Overrides that were applied, for the same reason.
        command: The command line of the process that they were given on, ``None`` where they come from Python.
        program: The words of it that start the same configuration without overrides, see :class:`Origins`.

    Raises:
        ConfigError: See :func:`load`.

    Warns:
        ConfigWarning: See :func:`load`.
    """
    sources = Sources.of(source, overrides, "command line" if command is not None else "from Python")
    named = named_kind(config)
    if named is not None and not issubclass(kind, named.config):
        raise _error([_of_another_kind(named, kind)], sources, source)
    origins = Origins(sources, {}, command, program)
    if issubclass(kind, StagedConfig):
        return _check_stages(config, kind, source, overrides, origins)
    return _checked(config, kind, source, overrides, origins)


def _checked(
    config: DictConfig,
    kind: type[Config],
    source: str | None,
    overrides: Sequence[str],
    origins: Origins,
    leave_out: Collection[str] = (),
    **more: Any,
) -> Config:
    """Return what :func:`check` does of one kind, without the keys of ``leave_out`` and with those of ``more``."""
    sources = origins.sources
    problems: list[Problem] = []
    texts: dict[str, str] = {}
    data = resolve(config, problems, (*_COMPOSITION_KEYS, *leave_out), texts)
    if problems:
        raise _error(problems, sources, source)
    given = [override.lstrip("+~").partition("=")[0] for override in overrides]
    native = translate(data, kind, given)
    native.data.update(more)
    if source is not None and Path(source).is_file():
        native.data.setdefault("exp_name", Path(source).stem)
    if native.problems:
        raise _error(native.problems, sources, source)
    try:
        loaded = _validated(native.data, kind, texts)
    except ValidationError as error:
        found = validation_problems(error, native.data, kind)
        found = [_for_another_program(native.as_written(problem), kind) for problem in found]
        raise _error(found, sources, source) from None
    loaded, chosen = with_processes(loaded)
    found = list(loaded.problems())
    if found:
        raise _error([native.as_written(problem) for problem in found], sources, source)
    said = [*loaded.cautions(), *([] if chosen is None else [chosen])]
    cautions = [native.caution_as_written(caution) for caution in said]
    for key, caution in [*native.cautions(), *((text.partition(":")[0], text) for text in cautions)]:
        place = sources.locate(key.split("."))
        warnings.warn(f"{caution}{f' [{place}]' if place else ''}", ConfigWarning, stacklevel=3)
    written = {native: origin.path for native, origin in native.origins.items()}
    return loaded.from_origins(replace(origins, written=written))


def _validated(data: dict[str, Any], kind: type[Config], texts: Mapping[str, str]) -> Config:
    """Return the checked keys; those that want text have it as the variable said it (see :func:`resolve`).

    Raises:
        ValidationError: A key has a value that it cannot have.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        wanted = {problem.path for problem in validation_problems(error, data, kind)} & texts.keys()
    for path in wanted:
        put(data, path, texts[path])
    return kind.model_validate(data)


def _check_stages(
    config: DictConfig, kind: type[Config], source: str | None, overrides: Sequence[str], origins: Origins
) -> Config:
    """Check every stage, and then what is for all of them.

    Raises:
        ConfigError: Lists the problems of all stages.
    """
    try:
        overlaid = overlay(config, exp_name=config.get("exp_name") or (Path(source).stem if source else "roll"))
    except ConfigError as error:
        raise _error(error.problems, origins.sources, source) from None
    stages, problems = {}, []
    for each in overlaid:
        given, its = each.overrides(overrides), each.sources(origins.sources)
        origin = replace(origins, sources=its, output_dir=Path(str(config.get("output_dir") or OUTPUT)))
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                checked = _checked(each.composed, each.kind.config, None, given, origin, each.leave_out)
            stages[each.name] = Stage.of(checked, **each.keys)
        except ValidationError as error:
            found = validation_problems(error, dict(each.keys), StageKeys)
            problems += [replace(problem, path=f"{each.path}.{problem.path}") for problem in found]
        except ConfigError as error:
            problems += [each.at_home(problem) for problem in error.problems]
        for item in caught:
            warnings.warn(f"{each.path}: {item.message}", ConfigWarning, stacklevel=3)
    if problems:
        raise ConfigError(list({(each.path, each.message): each for each in problems}.values()), source=source)
    for caution in without_effect(overlaid, overrides):
        warnings.warn(caution, ConfigWarning, stacklevel=3)
    of_stages = {key for name in PIPELINES for key in valid_keys(PIPELINES.get(name).config)} - {*valid_keys(kind)}
    return _checked(config, kind, source, overrides, origins, of_stages | {STAGES}, stages=stages)


def _of_another_kind(named: PipelineKind, kind: type[RunConfig]) -> Problem:
    own = [name for name in PIPELINES if PIPELINES.get(name).config is kind]
    fix = f"start {named.config.program} with it" if named.config.program else f"start what runs {named.name}"
    other = f", or set pipeline: {own[0]}" if own else ""
    return Problem("pipeline", "this program runs another kind.", f"{fix}{other}.", named.name)


def _for_another_program(problem: Problem, kind: type[RunConfig]) -> Problem:
    """Name the program that reads a top-level key which this one does not know."""
    if problem.message != "unknown key.":
        return problem
    others = [PIPELINES.get(name).config for name in PIPELINES]
    known = [other for other in others if other is not kind and other.program and problem.path in other.model_fields]
    if not known or problem.path in kind.model_fields:
        return problem
    program = known[0].program
    return replace(problem, fix=f"it is a key of {program}: start that with this file, or remove the key.")


def _error(problems: Sequence[Problem], sources: Sources, source: str | None) -> ConfigError:
    located = [replace(problem, source=sources.locate(problem.path.split("."))) for problem in problems]
    return ConfigError(located, source=source)
