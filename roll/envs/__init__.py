"""Text environments with Gymnasium's API, and the tags by which a run names them.

Importing this package registers ``roll/Sokoban-v0`` and ``roll/FrozenLake-v0`` with Gymnasium and the built-in tags.
"""

from roll.common.unavailable import UnavailableError
from roll.envs.base import Outcome, TextEnv
from roll.envs.builtin import register_builtin
from roll.envs.registry import (
    ENV_TYPES,
    TAGS,
    Tag,
    get_env_class,
    get_tag,
    list_tags,
    make,
    register_env,
    register_tag,
    register_tags_from_config,
    unregister,
)
from roll.envs.seeding import env_seed
from roll.envs.waiting import AsyncTextEnv

register_builtin()

__all__ = [
    "ENV_TYPES",
    "TAGS",
    "AsyncTextEnv",
    "Outcome",
    "Tag",
    "TextEnv",
    "UnavailableError",
    "env_seed",
    "get_env_class",
    "get_tag",
    "list_tags",
    "make",
    "register_env",
    "register_tag",
    "register_tags_from_config",
    "unregister",
]
