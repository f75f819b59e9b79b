"""Which keys of a configuration a run reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any, Final

from pydantic import BaseModel

from roll.config.base import ConfigModel

ONLOOKERS: Final = (
    "roll.config.base",
    "roll.config.runnable",
    "roll.config.written",
    "roll.config.*checks",
    "roll.pipelines.checks.*",
    "roll.planning.*",
    "roll.rehearsal.*",
)
"""Modules that look at keys without acting on them: they check them, or write all of them down."""

INTERPOLATED: Final = frozenset(
    {
        *("max_actions_per_traj", "max_tokens_per_step", "action_pattern", "think_action_pattern"),
        *("all_response_pattern", "*_format_penalty", "env_manager_cls", "agent_system_template", "agent_template"),
        *("custom_env.*", "deepspeed_zero*", "variables"),
    }
)
"""Values for other keys, and tags, which reach the registry of environments as a whole."""

COPIED: Final = frozenset(
    {
        *("validation.data_args*", "validation.generating_args*", "rewards.*.strategy_args*"),
        *("*_env_manager.n_groups", "custom_envs.*"),
    }
)
"""Keys of sections that are copied before they are read, or that were filled and not written."""

BEFORE: Final = frozenset(
    {
        *("algorithm_type", "pipeline", "prompt_length", "*_modules", "actor_train.data_args"),
        "actor_train.data_args.template",
    }
)
"""Keys that are read before the run: they fill others, or say what is imported and how conversations are written."""

ONE_VALUE: Final = frozenset({"checkpoint_config.type", "*.generating_args.num_beams"})
"""Keys that have one value."""


class KeyWatch:
    """Remembers which keys of a configuration were read, by their path.

    Args:
        config: The configuration; its sections are told apart by identity.
    """

    def __init__(self, config: ConfigModel) -> None:
        self.config = config
        self.paths: dict[int, str] = {}
        self.written: set[str] = set()
        self.keys = set(self._walk(config, ""))
        self.read: set[str] = set()

    def _walk(self, section: BaseModel, prefix: str) -> Iterator[str]:
        self.paths[id(section)] = prefix
        self.written |= {prefix + key for key in section.model_fields_set}
        for key in type(section).model_fields:
            yield prefix + key
            value = section.__dict__[key]
            inside = {f"{prefix}{key}.": value} if isinstance(value, BaseModel) else {}
            if isinstance(value, dict):
                inside = {f"{prefix}{key}.{name}.": item for name, item in value.items()}
            for place, item in inside.items():
                if isinstance(item, BaseModel):
                    yield from self._walk(item, place)

    def note(self, section: ConfigModel, key: str) -> None:
        """Remember that the caller's caller read a key of a section, if it acts on keys."""
        module = sys._getframe(2).f_globals.get("__name__", "")
        looks_on = any(fnmatch(module, pattern) for pattern in ONLOOKERS)
        if module.startswith("roll.") and not looks_on and key in type(section).model_fields:
            self.read.add(self.paths.get(id(section), "?") + key)

    def unread(self) -> list[str]:
        """Return the keys that were set and that nothing has read, in order."""
        excused = (*INTERPOLATED, *BEFORE, *ONE_VALUE, *COPIED)
        left = self.written & (self.keys - self.read)
        return sorted(key for key in left if not any(fnmatch(key, pattern) for pattern in excused))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all configurations of this process inside."""

        def read(section: ConfigModel, key: str) -> Any:
            self.note(section, key)
            return object.__getattribute__(section, key)

        ConfigModel.__getattribute__ = read  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            del ConfigModel.__getattribute__
