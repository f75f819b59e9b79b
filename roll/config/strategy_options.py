"""What the models of the keys of a ``strategy_config`` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import ValidationError

from roll.config.base import ConfigModel
from roll.config.errors import ConfigError
from roll.config.validation import validation_problems


class StrategyOptions(ConfigModel):
    """Options of a strategy, checked as everything else in a configuration."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None, path: str = "strategy_config") -> Self:
        """Check a ``strategy_config``.

        Args:
            options: The mapping; ``None`` for all defaults.
            path: The key path of the mapping, for errors.

        Raises:
            ConfigError: A key is unknown, its value is none that it can have, or two keys contradict each other.
        """
        given = dict(options or {})
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = validation_problems(error, given, cls)
            placed = [replace(one, path=f"{path}.{one.path}" if one.path else path) for one in problems]
            raise ConfigError(placed) from error
