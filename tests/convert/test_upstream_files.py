"""Real configurations of the five systems, where they are at hand: the shares that convert, and that are translated."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from roll.config.errors import ConfigError
from roll.convert import convert, read

_FOLDERS = {
    "roll_HEAD": "roll",
    "roll_june": "roll",
    "roll_v0.1.0": "roll",
    "verl_jan2026": "verl",
    "verl_may2025": "verl",
    "trinity": "trinity",
    "trinity_head": "trinity",
    "chatlearn": "chatlearn",
    "mindspeed": "mindspeed",
}
_UPSTREAM = Path(__file__).resolve().parents[3] / "shared" / "upstream"
_PARTS = ("model_", "datasets_", "envs_", "tools_", "template_")
"""How files begin that others are composed of, or that are for other programs."""

pytestmark = [
    pytest.mark.skipif(not _UPSTREAM.is_dir(), reason="the files of other systems are not here"),
    pytest.mark.long,
    pytest.mark.exhaustive,
]


def _files() -> list[tuple[str, Path]]:
    return [
        (system, path)
        for folder, system in _FOLDERS.items()
        for path in sorted((_UPSTREAM / folder).rglob("*"))
        if path.is_file()
        and "config" not in path.parent.name.split("/")
        and not path.name.startswith(_PARTS)
        # Scores texts for a data service, and configures no run.
        and "dj_scoring" not in path.name
    ]


def test_most_files_convert_and_most_of_their_keys_are_translated() -> None:
    usable: dict[str, list[bool]] = defaultdict(list)
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for system, path in _files():
        try:
            conversion = convert(read([path]), system)
        except ConfigError:
            usable[system].append(False)
            continue
        # Videos are out of scope, and are refused.
        if "video" not in str(path):
            usable[system].append(conversion.ok)
            states[system].update(key.state for key in conversion.keys)

    converted = {system: sum(each) / len(each) for system, each in usable.items()}
    translated = {system: count["translated"] / count.total() for system, count in states.items()}
    assert min(converted.values()) >= 0.9, converted
    assert min(translated.values()) >= 0.8, translated
