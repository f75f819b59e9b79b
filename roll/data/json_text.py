"""JSON that means one thing: no key twice, no NaN."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        json.JSONDecodeError: It is no JSON.
        ValueError: It is none that can be used: a key twice in an object, ``NaN``, a number with too many digits, or
            brackets too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_integer)
    except RecursionError:
        raise ValueError("its brackets are too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON; write null where there is no value")


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number has {len(digits)} digits; write it as text") from None
