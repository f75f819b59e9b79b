"""What can go wrong with environments, as Gymnasium errors with one line of advice each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import gymnasium.error


class EnvError(gymnasium.error.Error):
    """Base of every error of :mod:`roll.envs`."""


class UnknownTagError(EnvError, LookupError):
    """No tag of that name is registered."""


class UnknownEnvTypeError(EnvError, LookupError):
    """No environment type of that name is registered."""


class DuplicateNameError(EnvError, ValueError):
    """A tag or environment type of that name exists already."""


class EnvConfigError(EnvError, ValueError):
    """An option of an environment or a key of a tag is unknown or has a value that cannot work."""


class MissingDependencyError(EnvError, ImportError):
    """The environment needs a package that is not installed."""


class EpisodeNotRunningError(gymnasium.error.ResetNeeded, EnvError):
    """``step`` was called before ``reset`` or after the end of the episode."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return advice for an unknown ``name``: the close known names, or all of them when none is close.

    Args:
        name: What was asked for.
        known: Every name that would have worked.

    Returns:
        A sentence such as ``"Did you mean 'SimpleSokoban'?"``.
    """
    names = sorted(known)
    by_lower = {each.lower(): each for each in names}
    close = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if close:
        return f"Did you mean {' or '.join(repr(each) for each in close)}?"
    if names:
        return f"Known: {', '.join(names)}."
    return "None is registered yet."
