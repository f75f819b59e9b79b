"""Lookups of symbols and actions as they come from YAML: partial, with keys as text or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.common.spelling import did_you_mean
from roll.envs.errors import EnvConfigError


def merged_lookup(option: str, defaults: Mapping[int, str], given: Mapping[Any, Any] | None) -> dict[int, str]:
    """Return ``defaults`` updated by ``given``, whose keys may be ``1`` or ``"1"``.

    Args:
        option: Name for messages (``grid_lookup``).
        defaults: Every valid key with its default text.
        given: What the user wrote; may be partial.

    Raises:
        EnvConfigError: On a key that is not in ``defaults`` or an empty or repeated text.
    """
    result = dict(defaults)
    for key, text in (given or {}).items():
        try:
            number = int(key)
        except (TypeError, ValueError):
            number = -1
        if number not in defaults:
            meanings = ", ".join(f"{code} ({name})" for code, name in defaults.items())
            raise EnvConfigError(f"{option}: unknown key {key!r}; valid keys and defaults are {meanings}")
        result[number] = str(text)
    texts = list(result.values())
    repeated = sorted({text for text in texts if texts.count(text) > 1})
    if repeated or "" in texts:
        raise EnvConfigError(f"{option}: every text must be non-empty and used once, got {result}")
    return result


def merged_vocab(
    symbols: Mapping[int, str], meanings: Mapping[int, str], given: Mapping[Any, Any] | None
) -> dict[str, str]:
    """Return symbol -> meaning for the legend.

    Args:
        symbols: Code -> symbol.
        meanings: Code -> default meaning.
        given: Symbol -> meaning, as the user wrote it; may be partial.

    Raises:
        EnvConfigError: On a symbol that the grid does not use.
    """
    result = {symbols[code]: meaning for code, meaning in meanings.items()}
    for symbol, meaning in (given or {}).items():
        if str(symbol) not in result:
            raise EnvConfigError(
                f"grid_vocab: symbol {symbol!r} is not in grid_lookup. {did_you_mean(str(symbol), result)}"
            )
        result[str(symbol)] = str(meaning)
    return result


def legend(vocab: Mapping[str, str]) -> str:
    """Return ``"# wall, _ floor, ..."``."""
    return ", ".join(f"{symbol.strip() or repr(symbol)} {meaning}" for symbol, meaning in vocab.items())


LONGEST_SIDE = 200
"""Longest side of a map: an observation of it is far beyond what a policy can read."""


def room_size(option: str, value: Sequence[int], least: int) -> tuple[int, int]:
    """Return ``value`` as (rows, columns).

    Raises:
        EnvConfigError: If it is not two whole numbers of at least ``least``.
    """
    try:
        rows, columns = (int(each) for each in value)
    except (TypeError, ValueError) as error:
        raise EnvConfigError(f"{option}={value!r}: give two whole numbers, such as [6, 6] (rows, columns)") from error
    if rows < least or columns < least:
        raise EnvConfigError(f"{option}={value!r}: both sides must be at least {least}")
    if max(rows, columns) > LONGEST_SIDE:
        raise EnvConfigError(f"{option}={value!r}: neither side may be longer than {LONGEST_SIDE}")
    return rows, columns
