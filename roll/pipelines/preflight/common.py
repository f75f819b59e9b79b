"""What every check uses: the import of the user's modules, and errors as sentences."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.config import ConfigError, PipelineConfig, Problem
from roll.distributed import plan_placement
from roll.strategies.fsdp.options import FsdpOptions
from roll.workers.classes import worker_class


def module_problems(config: PipelineConfig, keys: Sequence[str]) -> Iterator[Problem]:
    """Import the user's modules named by ``keys``, from the working directory too, as ``python -m`` would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    for key in keys:
        for name in getattr(config, key):
            try:
                importlib.import_module(name)
            except Exception as error:
                fix = f"install the package, or start from the folder that holds it (this one is {here})."
                if not (isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))):
                    fix = f"correct the module; `python -c 'import {name}'` shows where it fails."
                yield Problem(key, f"cannot import {name}: {type(error).__name__}: {error}.", fix, name)


def strategy_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield options that the train strategy of a role does not have."""
    for role, worker in config.roles():
        if worker.strategy_args.strategy_name in ("fsdp_train", "fsdp_infer"):
            try:
                FsdpOptions.from_mapping(worker.strategy_args.strategy_config, f"{role}.strategy_args.strategy_config")
            except ConfigError as error:
                yield from error.problems


def worker_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield worker classes that cannot be had."""
    for role in plan_placement(config).roles:
        try:
            worker_class(config, role)
        except ImportError as error:
            fix = "leave it out for the project's own, or name a subclass of it that can be imported."
            yield Problem(f"{role}.worker_cls", sentence(error), fix)


def sentence(error: BaseException) -> str:
    """Return the message of an error as one sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "?")) else f"{text}."
