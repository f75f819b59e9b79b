"""Which kind of run a configuration of another system is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.composing import from_mapping
from roll.config.kinds import PIPELINES, kind_with
from roll.config.loading import kind_of
from roll.config.run import RunConfig
from roll.convert.foreign import ROLL, Foreign

_PROGRAMS: Final = {"sft": "sft", "dpo": "dpo", "generation": "evaluation", "eval": "evaluation"}
"""Part of a program's name → the pipeline that does the same here."""

_ALGORITHMS: Final = {"sft": "sft", "dpo": "dpo"}
"""Algorithms of Trinity-RFT that sample nothing."""


def pipeline_of(foreign: Foreign, system: str) -> str:
    """Return the name of the pipeline that does here what the configuration asks for.

    Raises:
        ConfigError: It names a pipeline that there is not.
    """
    if system == ROLL:
        return kind_with(kind_of(from_mapping(foreign.tree))).name
    program = foreign.program.rpartition(".")[2].rpartition("/")[2].lower()
    for part, pipeline in _PROGRAMS.items():
        if part in program:
            return pipeline
    if system == "trinity":
        if foreign.tree.get("mode") == "bench":
            return "evaluation"
        return _ALGORITHMS.get(str(_at(foreign.tree, "algorithm", "algorithm_type")), "rlvr")
    return "rlvr"


def config_of(pipeline: str) -> type[RunConfig]:
    """Return the model of a pipeline's keys."""
    return PIPELINES.get(pipeline).config


def _at(tree: Mapping[str, Any], *path: str) -> Any:
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
