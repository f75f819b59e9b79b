"""Workers that train and score with the real Megatron-Core on the CPU, each named as ``worker_cls``.

They import Megatron-Core when they are made, so that a machine without it can name them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from roll.workers.train import ScoreWorker, TrainWorker

T = TypeVar("T", bound=type[Any])


@contextmanager
def _on_cpu() -> Iterator[None]:
    with _megatron().megatron_on_cpu():
        yield


@functools.cache
def _megatron() -> ModuleType:
    with warnings.catch_warnings():
        # It warns of all that it does without, which the rehearsal says.
        warnings.simplefilter("ignore")
        return importlib.import_module("roll.rehearsal.megatron_on_cpu")


def _all_on_cpu(worker: T) -> T:
    """Make every method of a class compute on the CPU."""
    for name, method in inspect.getmembers(worker, inspect.isfunction):
        setattr(worker, name, _on_cpu()(method))
    return worker


@_all_on_cpu
class MegatronTrainWorker(TrainWorker):
    """Trains as on a GPU, with layers in plain PyTorch."""


@_all_on_cpu
class MegatronScoreWorker(ScoreWorker):
    """The same for a frozen model."""
