"""Env managers: each drives one episode as a coroutine and returns a trajectory."""

from roll.common.threads import CallThreads
from roll.env_managers.groups import GroupMismatchError, check_group
from roll.env_managers.records import (
    EnvManagerLimits,
    EpisodeSpec,
    Timeouts,
    TokenInvariantError,
)
from roll.env_managers.retrying import Retries, play_again
from roll.env_managers.templates import Templates
from roll.env_managers.trajectory import TrajectoryEnvManager

__all__ = [
    "EnvManagerLimits",
    "CallThreads",
    "EpisodeSpec",
    "GroupMismatchError",
    "Retries",
    "Templates",
    "Timeouts",
    "TokenInvariantError",
    "TrajectoryEnvManager",
    "check_group",
    "play_again",
]
