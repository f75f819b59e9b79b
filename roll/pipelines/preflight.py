"""Checks that need environments or algorithms, before any model loads; every finding is a configuration problem."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from roll.algorithms.registry import UnknownAlgorithmError, registry, unused_options
from roll.config import AgenticConfig, ConfigError, EnvManagerConfig, Problem, require_runnable
from roll.env_managers.templates import Templates
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import Tag, get_env_class, get_tag, make, register_tags_from_config
from roll.envs.errors import EnvError, UnknownTagError
from roll.pipelines.not_yet import keys_without_effect

ESTIMATOR_INPUTS = frozenset(
    {"scores", "token_rewards", "group_ids", "turn_ids", "trajectory_ids", "lengths", "state_hashes"}
)
"""What :func:`roll.pipelines.credit.assign_credit` can give an estimator."""

LOSS_INPUTS = frozenset({"turn_ids"})
"""What the agentic batch can give a policy loss beside log-probs, advantages and mask."""

_ESTIMATOR_OPTIONS = ("gamma", "lambd", "step_reward_gamma", "step_reward_weight")
_LOSS_OPTIONS = {
    "pg_clip": "clip_low",
    "pg_clip_low": "clip_low",
    "pg_clip_high": "clip_high",
    "dual_clip_loss": "dual_clip",
}


def check(config: AgenticConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot: modules, tags, environment options, templates, algorithms.

    Imports ``env_modules`` and ``algorithm_modules`` and registers the tags of the configuration.

    Returns:
        What has no effect, one sentence each.

    Raises:
        ConfigError: Lists every problem.
    """
    require_runnable(config)
    problems = list(_module_problems(config)) or [*_tag_problems(config), *_algorithm_problems(config)]
    if problems:
        raise ConfigError(problems)
    return [*_options_without_effect(config), *keys_without_effect(config)]


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
    return Templates(tag.agent_system_template, tag.agent_template)


def manager_class(tag: Tag) -> type[TrajectoryEnvManager]:
    """Return the env manager class of a tag: the trajectory manager, or the class at ``env_manager_cls``.

    Raises:
        ImportError: If there is no such class.
    """
    if tag.env_manager_cls is None:
        return TrajectoryEnvManager
    module, _, name = tag.env_manager_cls.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    if not (isinstance(found, type) and issubclass(found, TrajectoryEnvManager)):
        raise ImportError(f"{tag.env_manager_cls!r} is not the import path of a TrajectoryEnvManager")
    return found


def _module_problems(config: AgenticConfig) -> Iterator[Problem]:
    """Import the user's modules, from the working directory too, as ``python -m`` would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    for key in ("env_modules", "algorithm_modules"):
        for name in getattr(config, key):
            try:
                importlib.import_module(name)
            except Exception as error:
                fix = f"install the package, or start from the folder that holds it (this one is {here})."
                if not (isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))):
                    fix = f"correct the module; `python -c 'import {name}'` shows where it fails."
                yield Problem(key, f"cannot import {name}: {type(error).__name__}: {error}.", fix, name)


def _tag_problems(config: AgenticConfig) -> Iterator[Problem]:
    try:
        register_tags_from_config(config.tag_mappings())
    except (EnvError, ValueError, TypeError) as error:
        yield Problem("custom_envs", _sentence(error), "correct the tag.")
        return
    for key in ("train_env_manager", "val_env_manager"):
        manager: EnvManagerConfig = getattr(config, key)
        for name in dict.fromkeys(manager.tags):
            try:
                tag = get_tag(name)
            except UnknownTagError as error:
                fix = "name a known tag, define it under custom_envs:, or import its module by env_modules:."
                yield Problem(f"{key}.tags", _sentence(error), fix, name)
                continue
            yield from _environment_problems(config, name, manager, key)
            yield from _manager_problems(config, tag)
            if key == "train_env_manager" or name not in config.train_env_manager.tags:
                yield from _template_problems(config, tag)


def _environment_problems(config: AgenticConfig, name: str, manager: EnvManagerConfig, key: str) -> Iterator[Problem]:
    """Make one environment and close it again."""
    try:
        environment(name, manager)().close()
    except Exception as error:
        place = f"{_section(config, name)}.{name}.env_config" if name in config.tags() else f"{key}.tags"
        message = f"the environment cannot be made: {_sentence(error)}"
        yield Problem(place, message, f"correct what tag {name} is made with.", _env_config(config, name))


def _manager_problems(config: AgenticConfig, tag: Tag) -> Iterator[Problem]:
    try:
        manager_class(tag)
    except ImportError as error:
        place = f"{_section(config, tag.name)}.{tag.name}.env_manager_cls"
        fix = "leave it out for the trajectory manager, or name a subclass of it that can be imported."
        yield Problem(place, _sentence(error), fix, tag.env_manager_cls)


def _template_problems(config: AgenticConfig, tag: Tag) -> Iterator[Problem]:
    try:
        templates(tag)
    except ValueError as error:
        field = "agent_system_template" if "agent_system_template" in str(error) else "agent_template"
        place = f"{_section(config, tag.name)}.{tag.name}.{field}"
        yield Problem(place, _sentence(error), "correct the template.", getattr(tag, field))


def _algorithm_problems(config: AgenticConfig) -> Iterator[Problem]:
    if config.adv_estimator == "gae":
        message = "gae needs a value model, and this version of roll cannot train a critic yet."
        yield Problem("adv_estimator", message, "use an estimator without one: step_reinforce, grpo, rloo.", "gae")
        return
    names = (
        ("adv_estimator", config.adv_estimator, "advantage", ESTIMATOR_INPUTS),
        ("policy_loss", config.policy_loss_name, "loss", LOSS_INPUTS),
    )
    for key, name, kind, available in names:
        try:
            entry = registry(kind).get(name)  # type: ignore[arg-type]
        except UnknownAlgorithmError as error:
            yield Problem(key, _sentence(error), "use a known name.", name)
            continue
        missing = sorted(entry.needs - available)
        if missing:
            message = f"{name} needs {', '.join(missing)}, which the agentic pipeline does not provide yet."
            yield Problem(key, message, "use another one, such as step_reinforce with the ppo loss.", name)


def _options_without_effect(config: AgenticConfig) -> Iterator[str]:
    """Name the options that were set to something else than their default and that nothing chosen reads."""
    estimator, loss = config.adv_estimator, config.policy_loss_name
    # step_reinforce discounts per turn: its gamma is the key step_reward_gamma.
    names = {key: key for key in _ESTIMATOR_OPTIONS}
    if estimator == "step_reinforce":
        names |= {"gamma": "", "step_reward_gamma": "gamma"}
    unread = {*unused_options(estimator, names.values())}
    yield from (
        f"{key}={getattr(config, key)} has no effect: adv_estimator={estimator} does not read it"
        for key, option in names.items()
        if option in unread and _was_set(config, key)
    )
    unread = {*unused_options(loss, _LOSS_OPTIONS.values(), "loss")}
    yield from (
        f"{key}={getattr(config, key)} has no effect: policy_loss={loss} does not read it"
        for key, option in _LOSS_OPTIONS.items()
        if option in unread and _was_set(config, key)
    )


def _was_set(config: AgenticConfig, key: str) -> bool:
    return key in config.model_fields_set and getattr(config, key) != type(config).model_fields[key].default


def _section(config: AgenticConfig, name: str) -> str:
    """Return where the tag is defined: a key of the configuration, or Python code."""
    if name in config.custom_envs:
        return "custom_envs"
    return "custom_env" if name in config.custom_env else "tag"


def _env_config(config: AgenticConfig, name: str) -> Any:
    return config.tags()[name].env_config if name in config.tags() else name


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "?")) else f"{text}."
