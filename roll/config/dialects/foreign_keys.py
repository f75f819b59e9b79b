"""What became of a key of another system: the record of it, and what makes an unknown key a typing mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll.common.spelling import closest

State = Literal["translated", "no_effect", "impossible"]


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """What became of one key of another system.

    Attributes:
        key: The key as written.
        state: ``translated`` to native keys, ``no_effect`` here, or ``impossible``: it asks for what is not here.
        to: The native keys that it sets, or agrees with.
        why: Why it has no effect or is impossible, or what is not quite the same; may be empty for a translated key.
    """

    key: str
    state: State
    to: tuple[str, ...] = ()
    why: str = ""


def is_typing_mistake(name: str, known: Iterable[str]) -> bool:
    """Tell whether an unknown key is so close to a known one that it stands for that."""
    return bool(closest(name, known, cutoff=0.9))


def keys_of(path: str, value: Any) -> list[str]:
    """Return the keys that a value has below ``path``, or ``path`` itself."""
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [key for name, item in value.items() for key in keys_of(f"{path}.{name}", item)]
