"""Checks of an agentic run that need environments, before any model loads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

from roll.common.registry import UnknownNameError
from roll.config import AgenticConfig, ConfigError, EnvManagerConfig, PlayingConfig, Problem
from roll.config.errors import Absent, causes
from roll.env_managers.agent import AgentEnvManager
from roll.envs import Tag, get_env_class, get_tag, register_tags_from_config
from roll.envs.errors import EnvError, UnknownTagError
from roll.pipelines.checks.algorithms import algorithm_problems
from roll.pipelines.checks.keys_without_effect import keys_without_effect
from roll.pipelines.checks.sampled import sampled_problems
from roll.pipelines.run.checks import absence_problems, sentence
from roll.pipelines.sampling.levels import difficulty_bands
from roll.pipelines.sampling.operators import operator_problems
from roll.schedulers.difficulty import NoLevelError
from roll.workers.environment import environment, manager_class, templates


def check_agentic(config: AgenticConfig, *, trains: bool = True) -> list[str]:
    """Check what :func:`roll.config.load` cannot: modules, tags, environment options, templates, algorithms.

    Imports the modules that it names, and registers the tags of the configuration.

    Args:
        config: The configuration.
        trains: Whether the policy is to be trained, and not only measured.

    Returns:
        What has no effect, one sentence each.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(absence_problems(config, ("env_modules", "algorithm_modules", "reward_modules", "tracker_modules")))
    problems = problems or [
        *algorithm_problems(config),
        *operator_problems(config),
        *playing_problems(config, trains=trains),
    ]
    if problems:
        raise ConfigError(problems)
    return list(keys_without_effect(config))


def playing_problems(config: PlayingConfig, *, trains: bool = True) -> Iterator[Problem]:
    """Yield what is wrong with the environments, roles and graders of a run, whatever it learns from its episodes."""
    yield from _tag_problems(config)
    yield from sampled_problems(config, trains=trains)


def _tag_problems(config: PlayingConfig) -> Iterator[Problem]:
    try:
        register_tags_from_config(config.tag_mappings())
    except (EnvError, ValueError, TypeError) as error:
        yield Problem("custom_envs", sentence(error), "correct the tag.")
        return
    for key in ("train_env_manager", "val_env_manager"):
        manager: EnvManagerConfig = getattr(config, key)
        for name in dict.fromkeys(manager.tags):
            try:
                tag = get_tag(name)
            except UnknownTagError as error:
                fix = "name a known tag, define it under custom_envs:, or import its module by env_modules:."
                yield Problem(f"{key}.tags", sentence(error), fix, name)
                continue
            try:
                get_env_class(tag.env_type)
            except UnknownNameError as error:
                fix = "name a known type, or import the module that registers it by env_modules:."
                yield Problem(f"{_place(config, name)}.env_type", sentence(error), fix, tag.env_type)
                continue
            yield from _environment_problems(config, name, manager, key)
            yield from _manager_problems(config, tag)
            if key == "train_env_manager" or name not in config.train_env_manager.tags:
                yield from _template_problems(config, tag)
            if key == "train_env_manager":
                yield from _difficulty_problems(config, name)


def _environment_problems(config: PlayingConfig, name: str, manager: EnvManagerConfig, key: str) -> Iterator[Problem]:
    """Make one environment and close it again."""
    try:
        env = environment(name, manager)()
        closing = env.close()
        if inspect.iscoroutine(closing):
            asyncio.run(closing)
    except Exception as error:
        place = f"{_place(config, name)}.env_config" if name in config.tags() else f"{key}.tags"
        message = f"the environment cannot be made: {sentence(error)}"
        # A file or a package may be there on another machine.
        kind = Absent if any(isinstance(each, FileNotFoundError | ImportError) for each in causes(error)) else Problem
        yield kind(place, message, f"correct what tag {name} is made with.", _env_config(config, name))
        return
    if key == "val_env_manager" and name in config.train_env_manager.tags:
        return  # it was said already
    graded = {tag for domain, reward in config.rewards.items() for tag in reward.tags(domain)}
    if getattr(env, "graded_by_rewards", False) is True and name not in graded:
        place = f"{_place(config, name)}.env_config.judge"
        fix = (
            f"grade it, such as rewards: {{{name.lower()}: {{tag_included: [{name}], verifiers: …}}}}; or leave it out."
        )
        yield Problem(place, f"no domain of rewards grades {name}: every seat would earn 0.", fix)
    for opponent in sorted(set(getattr(env, "opponents", ())) - set(config.opponents)):
        message = f"a seat of {name} is {opponent!r}, which is no opponent of the run."
        fix = f"add it, such as opponents: {{{opponent}: {{}}}} for the policy before training; or give the seat to "
        yield Problem("opponents", message, f"{fix}policy, random, module:function or an endpoint.")


def _difficulty_problems(config: PlayingConfig, tag: str) -> Iterator[Problem]:
    """Look for a level of each difficulty that a curriculum parts the tag in."""
    curriculum = config.train_env_manager.curriculum
    if curriculum is None or tag not in curriculum.difficulty:
        return
    place, given = f"train_env_manager.curriculum.difficulty.{tag}", curriculum.difficulty[tag]
    bands = difficulty_bands(config)
    try:
        for band in bands.names(tag):
            bands.level(band, 0, most_tried=1000)
    except NoLevelError as error:
        yield Problem(place, f"{error}.", "give bounds between which there are levels.", given)
    except (AttributeError, NotImplementedError):
        fix = "leave it out, or give its environment a method difficulty(seed)."
        yield Problem(place, "its environment does not tell the difficulty of its levels.", fix, given)


def _manager_problems(config: PlayingConfig, tag: Tag) -> Iterator[Problem]:
    place = _place(config, tag.name)
    try:
        found = manager_class(tag)
    except EnvError:  # it needs a package that is not here, which was said of the environment
        return
    except ImportError as error:
        fix = "leave it out for the trajectory manager, or name a subclass of it that can be imported."
        yield Problem(f"{place}.env_manager_cls", sentence(error), fix, tag.env_manager_cls)
        return
    if tag.show != "text" and issubclass(found, AgentEnvManager):
        message = "an agent program asks the policy itself, and it asks in text."
        yield Problem(f"{place}.show", message, "leave it out.", tag.show)


def _template_problems(config: PlayingConfig, tag: Tag) -> Iterator[Problem]:
    try:
        templates(tag)
    except ValueError as error:
        field = "agent_system_template" if "agent_system_template" in str(error) else "agent_template"
        place = f"{_place(config, tag.name)}.{field}"
        yield Problem(place, sentence(error), "correct the template.", getattr(tag, field))


def _place(config: PlayingConfig, name: str) -> str:
    """Return where the tag is defined: a key of the configuration, or Python code."""
    return f"{config.section_of(name) or 'tag'}.{name}"


def _env_config(config: PlayingConfig, name: str) -> Any:
    return config.tags()[name].env_config if name in config.tags() else name
