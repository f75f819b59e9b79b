"""Rubrics from the configuration: one per domain."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.common.registry import UnknownNameError
from roll.config.errors import Absent, ConfigError, FixableError, Problem
from roll.config.grading_keys import GradedKeys, RewardConfig, VerifierConfig
from roll.config.objects import load_object
from roll.rewards.base import Verifier
from roll.rewards.concurrency import ConcurrencyLimit
from roll.rewards.functions import FunctionVerifier
from roll.rewards.registry import make_verifier
from roll.rewards.rubric import Rubric, Term


def build_rubrics(
    config: GradedKeys,
    resources: Mapping[str, Any] | None = None,
    *,
    limit: ConcurrencyLimit | None = None,
) -> dict[str, Rubric]:
    """Return the rubric of each domain of ``config.rewards``.

    With ``custom_reward_function`` and no ``rewards`` at all there is one rubric, for the domain ``""``.

    Args:
        config: The run.
        resources: Objects for verifiers that use some: ``judge`` and ``judges`` (``llm_judge`` with ``engine: policy``
            or the name of a judge), ``score`` and ``render`` (``reward_model``), ``score_steps``
            (``process_reward_model``).
        limit: Responses graded at a time in all; ``None`` makes one of ``max_concurrent_rewards``.

    Raises:
        ConfigError: Everything that is wrong: unknown verifiers, wrong options, packages or modules that are missing.
    """
    problems: list[Problem] = []
    _import_modules(config, problems)
    custom = _custom_verifier(config, problems)
    shared_limit = limit or ConcurrencyLimit(config.max_concurrent_rewards)
    rewards = dict(config.rewards)
    if not rewards and config.custom_reward_function is not None:
        rewards[""] = RewardConfig()
    if not rewards:
        problems.append(
            Problem("rewards", "no domain says how responses are graded.", "add `rewards: {math_rule: {}}`, or such.")
        )
    rubrics = {}
    for domain, reward in rewards.items():
        terms = _terms(domain, reward, config, custom, resources or {}, problems)
        if terms:
            rubrics[domain] = Rubric(
                terms,
                timeout=reward.verifier_timeout,
                parallel=reward.verifier_parallel,
                success_threshold=reward.success_threshold,
                shared_limit=shared_limit,
            )
    if problems:
        raise ConfigError(problems)
    return rubrics


def _terms(
    domain: str,
    reward: RewardConfig,
    config: GradedKeys,
    custom: Verifier | None,
    resources: Mapping[str, Any],
    problems: list[Problem],
) -> list[Term]:
    path = f"rewards.{domain}"
    named = reward.verifiers or reward.verifier_function
    if config.custom_reward_function is not None and not named:
        return [] if custom is None else [Term(config.custom_reward_function.name, 1.0, custom)]
    terms: list[Term] = []
    configured: Mapping[str, VerifierConfig] = reward.terms(domain)
    if not configured:
        problems.append(
            Problem(path, f"no verifier belongs to the domain {domain!r}.", "name some: `verifiers: {math: 1.0}`.")
        )
    for name, verifier in configured.items():
        if config.custom_reward_function is not None and name == config.custom_reward_function.name:
            terms.extend(_custom_term(path, name, verifier, custom, problems))
            continue
        try:
            made = make_verifier(name, verifier.options, resources)
        except UnknownNameError as error:
            problems.append(Problem(f"{path}.verifiers.{name}", str(error), "name one of the known verifiers."))
        except (ValueError, ImportError) as error:
            problems.append(Problem(f"{path}.verifiers.{name}", str(error), "see docs/rewards.md for its options."))
        else:
            terms.append(Term(name, verifier.weight, made))
    return terms


def _custom_term(
    path: str, name: str, verifier: VerifierConfig, custom: Verifier | None, problems: list[Problem]
) -> list[Term]:
    """Return the function of ``custom_reward_function`` as one of several verifiers."""
    if verifier.options:
        fix = "write them as custom_reward_function.kwargs."
        problems.append(Problem(f"{path}.verifiers.{name}.options", f"{name} has its options elsewhere.", fix))
    return [] if custom is None else [Term(name, verifier.weight, custom)]


def _import_modules(config: GradedKeys, problems: list[Problem]) -> None:
    for module in config.reward_modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            fix = "name a module that Python can import (its folder must be on PYTHONPATH)."
            problems.append(Problem("reward_modules", f"{module} cannot be imported: {error}.", fix, module))


def _custom_verifier(config: GradedKeys, problems: list[Problem]) -> Verifier | None:
    custom = config.custom_reward_function
    if custom is None:
        return None
    try:
        loaded = load_object(custom.path, custom.name)
        if not callable(loaded):
            raise TypeError(f"{custom.name} in {custom.path} is a {type(loaded).__name__}, not a function or class")
        if isinstance(loaded, type):
            return loaded(**custom.kwargs)
        return FunctionVerifier(loaded, custom.kwargs)
    except FixableError as error:
        kind = Problem if Path(custom.path).exists() else Absent
        problems.append(kind("custom_reward_function", error.message, error.fix, custom.path))
    except (ValueError, TypeError) as error:
        fix = "see `Your own function` in docs/rewards.md."
        problems.append(Problem("custom_reward_function", str(error), fix, custom.name))
    return None
