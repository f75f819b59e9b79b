"""What can go wrong with environments, as Gymnasium errors with one line of advice each."""

from __future__ import annotations

import gymnasium.error

from roll.common import registry


class EnvError(gymnasium.error.Error):
    """Base of every error of :mod:`roll.envs`."""


class UnknownTagError(EnvError, registry.UnknownNameError):
    """No tag of that name is registered."""


class UnknownEnvTypeError(EnvError, registry.UnknownNameError):
    """No environment type of that name is registered."""


class DuplicateNameError(EnvError, registry.DuplicateNameError):
    """A tag or environment type of that name exists already."""


class EnvConfigError(EnvError, ValueError):
    """An option of an environment or a key of a tag is unknown or has a value that cannot work."""


class MissingDependencyError(EnvError, ImportError):
    """The environment needs a package that is not installed."""


class EpisodeNotRunningError(gymnasium.error.ResetNeeded, EnvError):
    """``step`` was called before ``reset`` or after the end of the episode."""
