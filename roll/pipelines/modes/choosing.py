"""Which mode a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from roll.config import RLConfig
from roll.config.experience import Mode as Name
from roll.pipelines.modes.bench import Bench
from roll.pipelines.modes.explore import Explore
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.replaying import Replaying
from roll.pipelines.modes.serve import Serve
from roll.pipelines.modes.train import Train

_MODES: Final[Mapping[Name, type[Mode]]] = {
    "both": Mode,
    "explore": Explore,
    "train": Train,
    "bench": Bench,
    "serve": Serve,
}


def mode_of(config: RLConfig) -> type[Mode]:
    """Return what a run does, by its ``mode``, and whether it replays."""
    return Replaying if config.replays else _MODES[config.mode]
