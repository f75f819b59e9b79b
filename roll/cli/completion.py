"""What the shell offers when a word is completed. Reads files of the package only, so that it answers at once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer

KNOWN_KEYS: Final = Path(__file__).with_name("known_keys.json")
"""Keys with default and choices, and built-in tags; `make docs` writes it, since the configuration takes a second."""


class _Offer(str):
    """Is offered wherever in a name the word was found: typer keeps only what begins with it."""

    def startswith(self, *_: Any) -> bool:
        """Return that it may be offered."""
        return True


def complete_configuration(incomplete: str) -> list[tuple[str, str]]:
    """Return the configurations that begin so, with the first line of what they say of themselves."""
    from roll.cli.presets import configurations

    return [(name, line) for name, line in configurations().items() if name.startswith(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return keys that begin so, or whose last part does; behind ``=`` the values that a key can have.

    A key alone is offered with its default too: the shell then writes what both have in common, ``key=``, and no space.
    """
    keys: dict[str, list[Any]] = _known()["keys"]
    name, equals, value = incomplete.partition("=")
    if name and equals:
        return [f"{name}={choice}" for choice in _choices(name) if choice.startswith(value)]
    # bash takes `key=va` for three words and asks for the last one; of `key=` typer does not see the last one.
    before = [word for words in ctx.params.values() if isinstance(words, list | tuple) for word in words]
    key = before[-2] if before[-1:] == ["="] and before[:-1] else "" if incomplete else before[-1] if before else ""
    if key in keys:
        return [_Offer(choice) for choice in _choices(key) if choice.startswith(incomplete)]
    found = _matching(list(keys), incomplete)
    if len(found) == 1:
        return [_Offer(f"{found[0]}="), _Offer(f"{found[0]}={keys[found[0]][0]}")]
    return [_Offer(f"{key}=") for key in found]


def complete_key(incomplete: str) -> list[str]:
    """Return keys that begin so, or whose last part does."""
    return [_Offer(key) for key in _matching(list(_known()["keys"]), incomplete)]


def complete_tag(incomplete: str) -> list[str]:
    """Return the built-in tags that begin so."""
    return [tag for tag in _known()["tags"] if tag.startswith(incomplete)]


def _choices(key: str) -> list[str]:
    return list(_known()["keys"].get(key, ["", []])[1])


def _matching(keys: list[str], word: str) -> list[str]:
    # Of several sections without a word, those of the first level are enough to begin with.
    begin = [key for key in keys if key.startswith(word)] if word else [key for key in keys if "." not in key]
    return begin or [key for key in keys if key.rpartition(".")[2].startswith(word)]


@cache
def _known() -> dict[str, Any]:
    return dict(json.loads(KNOWN_KEYS.read_text(encoding="utf-8")))
