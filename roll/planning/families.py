"""Models known by name, so that a plan needs no download: what their ``config.json`` says of sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

_ORNAMENTS: Final = re.compile(
    r"[-_](instruct|chat|base|it|hf|think(ing)?|gptq|awq|fp8|int4|bf16|v\d\.\d|\d{4})(?=[-_]|$)"
)


@cache
def _families() -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    rows = json.loads(files("roll.planning").joinpath("families.json").read_text(encoding="utf-8"))
    return tuple((re.compile(row.pop("name")), row) for row in rows)


def known_config(name: str) -> Mapping[str, Any] | None:
    """Return the keys of the ``config.json`` of a well-known model that give sizes, ``None`` if nobody here knows it.

    Args:
        name: A hub name or a path that ends in one; whose copy it is, and how it was tuned, does not matter.
    """
    plain = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower().replace("_", "-")
    while (shorter := _ORNAMENTS.sub("", plain)) != plain:
        plain = shorter
    return next((dict(config) for pattern, config in _families() if pattern.search(plain)), None)
