"""Bodies of requests, read strictly: a field that is not known, or asks for what there is not, is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from roll.gateway.errors import ApiError, invalid, unsupported

_FIELD: Final = re.compile(r"(?!str$)[a-z]\w*")
"""The name of a field in a place; names of types, which are none, are left out."""


class Body(BaseModel):
    """The body of a request; a field that is ``null`` is one that is not there.

    Attributes:
        neutral: Fields that are taken only where they change nothing, with the values that do.
        hints: Fields that a server may leave unread: they ask for no other answer.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    hints: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Return a body whose every field was understood.

        Raises:
            ApiError: One is unknown, of the wrong type, or asks for what there is not.
        """
        given = {name: value for name, value in body.items() if value is not None and name not in cls.hints}
        for name, values in cls.neutral.items():
            if name in given and given.pop(name) not in values:
                raise unsupported(name)
        try:
            return cls.model_validate_json(json.dumps(given))
        except ValidationError as error:
            raise _refusal(error) from error


def _refusal(error: ValidationError) -> ApiError:
    # Of the forms that a value may have, the one that was read furthest is the one that was meant.
    first = max(error.errors(), key=lambda each: len(each["loc"]))
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or _FIELD.fullmatch(part))
    if first["type"] == "missing":
        return invalid(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return invalid(f"Unknown parameter: '{where}'. Leave it out.", where, "unknown_parameter")
    return invalid(f"Invalid value for '{where}': {first['msg']}.", where, "invalid_value")
