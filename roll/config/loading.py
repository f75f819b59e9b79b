"""From a composed configuration to a checked one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from roll.config.agentic import AgenticConfig
from roll.config.dialects import translate
from roll.config.errors import ConfigError, ConfigWarning, Problem, nearest
from roll.config.evaluation import EvaluationConfig
from roll.config.pipeline import PipelineConfig
from roll.config.rlvr import RLVRConfig
from roll.config.sources import Sources
from roll.config.validation import validation_problems

Config = TypeVar("Config", bound=PipelineConfig)

PIPELINES: tuple[type[PipelineConfig], ...] = (AgenticConfig, RLVRConfig, EvaluationConfig)

_COMPOSITION_KEYS = ("hydra", "defaults")
"""Keys that are for Hydra: they can be left over in a file that was read without it."""


def load(
    config: DictConfig | Mapping[str, Any],
    *,
    kind: type[Config] = AgenticConfig,  # type: ignore[assignment]
    source: str | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Resolve interpolations, validate every key, and check that the keys fit together. Loads no model.

    Sections in the spelling of other guides (:mod:`roll.config.dialects`) become native keys first.

    Args:
        config: The composed configuration: what Hydra hands over, or any mapping.
        kind: The model to validate with.
        source: Path of the primary YAML file, so that a problem can name file and line.
        overrides: Command-line overrides that were applied, for the same reason.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: Something is wrong; the error lists every problem with key path, value, origin and fix.

    Warns:
        ConfigWarning: A key has no effect, such as a reference model that no term uses.
    """
    sources = Sources.of(source, overrides)
    node = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    problems: list[Problem] = []
    data = _resolve(node, (), problems)
    for key in _COMPOSITION_KEYS:
        data.pop(key, None)
    if problems:
        raise _error(problems, sources, source)
    native = translate(data, kind)
    if native.problems:
        raise _error(native.problems, sources, source)
    try:
        loaded = kind.model_validate(native.data)
    except ValidationError as error:
        found = validation_problems(error, native.data, kind)
        found = [_for_another_program(native.as_written(problem), kind) for problem in found]
        raise _error(found, sources, source) from None
    found = list(loaded.problems())
    if found:
        raise _error([native.as_written(problem) for problem in found], sources, source)
    cautions = [native.caution_as_written(caution) for caution in loaded.cautions()]
    for key, caution in [*native.cautions(), *((text.partition(":")[0], text) for text in cautions)]:
        place = sources.locate(key.split("."))
        warnings.warn(f"{caution}{f' [{place}]' if place else ''}", ConfigWarning, stacklevel=2)
    return loaded


def _for_another_program(problem: Problem, kind: type[PipelineConfig]) -> Problem:
    """Name the program that reads a top-level key which this one does not know."""
    if problem.message != "unknown key.":
        return problem
    programs = [other.program for other in PIPELINES if other is not kind and problem.path in other.model_fields]
    if not programs or problem.path in kind.model_fields:
        return problem
    return replace(problem, fix=f"it is a key of {programs[0]}: start that with this file, or remove the key.")


def _error(problems: Sequence[Problem], sources: Sources, source: str | None) -> ConfigError:
    located = [replace(problem, source=sources.locate(problem.path.split("."))) for problem in problems]
    return ConfigError(located, source=source)


def _resolve(node: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Return plain values; record every interpolation that leads nowhere and every ``???`` instead of stopping."""
    if not isinstance(node, DictConfig | ListConfig):
        return node
    is_mapping = isinstance(node, DictConfig)
    resolved: dict[Any, Any] = {}
    for key in list(node.keys()) if is_mapping else range(len(node)):
        here = (*path, str(key))
        if not path and key in _COMPOSITION_KEYS:
            continue
        try:
            if OmegaConf.is_missing(node, key):
                problems.append(Problem(".".join(here), "a value is required.", "give it, for ??? stands for nothing."))
                continue
            resolved[key] = _resolve(node[key], here, problems)
        except OmegaConfBaseException as error:
            raw = OmegaConf.to_container(node, resolve=False)
            problems.append(_interpolation_problem(here, raw[key], error, node))  # type: ignore[index]
    return resolved if is_mapping else list(resolved.values())


def _interpolation_problem(path: tuple[str, ...], raw: Any, error: Exception, node: DictConfig | ListConfig) -> Problem:
    message = str(error).splitlines()[0].rstrip(".") + "."
    missing = re.search(r"\$\{([\w.]+)\}", str(raw))
    root = node._get_root()
    fix = "define the key that is interpolated, or write the value itself."
    if missing and isinstance(root, DictConfig):
        head = missing.group(1).split(".")[0]
        close = nearest(head, [str(key) for key in root]) if head not in root else None
        fix = f"did you mean ${{{close}}}?" if close else f"define {missing.group(1)}, or write the value itself."
        if head in ("custom_env", "agent_template") or head.startswith("deepspeed_"):
            file = head if head.startswith("deepspeed_") else "envs"
            fix = f"add '- ../config/{file}@_here_' to the defaults list, or define {missing.group(1)}."
    return Problem(".".join(path), message, fix, raw)
