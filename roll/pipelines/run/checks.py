"""What is checked of every run before it starts: the import of the user's modules, trackers, what is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roll.config import ConfigError, Problem, RunConfig
from roll.config.runnable import missing_problems
from roll.config.user_modules import import_problems
from roll.tracking.tracker import tracker_arguments


def check_run(config: RunConfig) -> list[str]:
    """Check what :func:`roll.config.load` cannot. Imports ``tracker_modules``.

    Returns:
        What has no effect, one sentence each.

    Raises:
        ConfigError: Lists every problem.
    """
    problems = list(absence_problems(config, ("tracker_modules",))) or list(tracker_problems(config))
    if problems:
        raise ConfigError(problems)
    return []


def absence_problems(config: RunConfig, keys: Sequence[str]) -> Iterator[Problem]:
    """Yield what is not installed here, and what :func:`module_problems` does."""
    yield from missing_problems(config)
    yield from module_problems(config, keys)


def module_problems(config: RunConfig, keys: Sequence[str]) -> Iterator[Problem]:
    """Import the user's modules named by ``keys``, from the working directory too, as ``python -m`` would."""
    for key in keys:
        yield from import_problems(key, getattr(config, key))


def tracker_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield trackers that nothing registers, and options that none of them takes."""
    try:
        tracker_arguments(config.track_with, config.tracker_kwargs)
    except ValueError as error:
        key, _, message = str(error).partition(": ")
        fix = "name one of those, or the module that registers yours in tracker_modules."
        if key != "track_with":
            key, fix = "tracker_kwargs", "remove the option, or set it below the name of its tracker."
        yield Problem(key, sentence(ValueError(message or str(error))), fix)


def sentence(error: BaseException) -> str:
    """Return the message of an error as one sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "?")) else f"{text}."
