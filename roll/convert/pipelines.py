"""Which kind of run a configuration of another system is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.composing import from_mapping
from roll.config.dialects.trinity.rewards import plays
from roll.config.kinds import PIPELINES, kind_with
from roll.config.loading import kind_of
from roll.config.run import RunConfig
from roll.convert.foreign import ROLL, Foreign

_PROGRAMS: Final = {"sft": "sft", "dpo": "dpo", "generation": "evaluation", "eval": "evaluation"}
"""Part of a program's name → the pipeline that does the same here."""

_ALGORITHMS: Final = {"sft": "sft", "dpo": "dpo", "on_policy_distill": "distill", "jsd": "distill"}
"""Algorithms of Trinity-RFT that learn from no scores."""


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
    return _of_trinity(foreign.tree) if system == "trinity" else "rlvr"


def _of_trinity(tree: Mapping[str, Any]) -> str:
    """Return the pipeline of a file of Trinity-RFT: by its mode, its algorithm, and what its workflow plays."""
    if tree.get("mode") == "bench":
        return "evaluation"
    named = _ALGORITHMS.get(str(_at(tree, "algorithm", "algorithm_type")))
    if named is not None:
        return named
    tasks = ("buffer", "explorer_input")
    workflows = [
        _at(tree, *tasks, "taskset", "default_workflow_type"),
        _at(tree, *tasks, "default_workflow_type"),
    ]
    return "agentic" if any(plays(each) for each in workflows if each) else "rlvr"


def config_of(pipeline: str) -> type[RunConfig]:
    """Return the model of a pipeline's keys."""
    return PIPELINES.get(pipeline).config


def _at(tree: Mapping[str, Any], *path: str) -> Any:
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
