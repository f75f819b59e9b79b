"""What every configuration model has in common: strict, closed, frozen, and known under more than one spelling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from roll.config.errors import FixableError

OUTPUT: Final = Path("output")
"""Where a run writes that names no folder."""


class ConfigModel(BaseModel):
    """Base of all configuration models.

    Unknown keys are errors and values are not converted (``"8"`` is not a number): a silent conversion is a typing
    mistake that surfaces hours later.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    key_aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of a key: alias to the key of this model."""

    @model_validator(mode="before")
    @classmethod
    def _rename_aliases(cls, data: Any) -> Any:
        """Replace aliases by the key they stand for; refuse both spellings at once."""
        if not isinstance(data, Mapping):
            return data
        renamed = dict(data)
        for alias, key in cls.key_aliases.items():
            if alias not in renamed:
                continue
            if key in renamed:
                raise FixableError(f"{alias!r} is another name of {key!r}, and both are set.", "remove one of them.")
            renamed[key] = renamed.pop(alias)
        return renamed


def as_list(value: Any) -> Any:
    """Return a single name as a list of one; leave anything else for validation."""
    return [value] if isinstance(value, str) else value


def _to_environment(value: Any) -> Any:
    """Let environment variables be written as YAML numbers, since a process only ever sees text."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for key, item in value.items()
    }


NameList = Annotated[list[str], BeforeValidator(as_list)]
"""A list of names; a single name is a list of one."""

EnvironmentVariables = Annotated[dict[str, str], BeforeValidator(_to_environment)]
"""Environment variables of a process; numbers are allowed and become text."""
