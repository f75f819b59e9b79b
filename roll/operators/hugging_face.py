"""The methods of a dataset of Hugging Face as an operator on rows of tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Final

import datasets

from roll.common.spelling import did_you_mean
from roll.config.objects import load_object
from roll.operators.dataset_rows import through_dataset
from roll.operators.registry import Registered, TaskRow


def apply_method(
    rows: Sequence[TaskRow], *, method: str = "filter", function: str | None = None, **options: Any
) -> list[TaskRow]:
    """Apply a method of ``datasets.Dataset`` to rows: ``filter``, ``map``, ``sort``, ``rename_column`` or another one.

    Args:
        rows: The rows.
        method: One that returns a dataset of the same rows, or of some of them.
        function: What it calls, as ``package.module:name`` or ``file.py:name``.
        **options: Its other parameters (``fn_kwargs``, ``batched``, ``input_columns``, …).

    Raises:
        ValueError: There is no such method, function or parameter, or other rows come back.
    """
    called = _called(method, function, options)
    return through_dataset(rows, lambda dataset: getattr(dataset, method)(**called))


def _check(*, method: str = "filter", function: str | None = None, **options: Any) -> None:
    _called(method, function, options)


def _called(method: str, function: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that a method is called with.

    Raises:
        ValueError: There is no such method, function or parameter.
    """
    if method not in _methods():
        raise ValueError(
            f"datasets.Dataset has no method {method!r} that changes rows. {did_you_mean(method, _methods())}"
        )
    if function is not None:
        path, _, name = function.rpartition(":")
        if not path:
            raise ValueError(f"function must be package.module:name or file.py:name, got {function!r}")
        options = {**options, "function": load_object(path, name)}
    signature = inspect.signature(getattr(datasets.Dataset, method))
    if "function" in signature.parameters and function is None:
        raise ValueError(f"datasets.Dataset.{method} needs a function: package.module:name or file.py:name")
    try:
        signature.bind(None, **options)
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[1:])
        raise ValueError(f"datasets.Dataset.{method}: {error}. Its parameters: {known}") from error
    return options


@functools.cache
def _methods() -> frozenset[str]:
    """Return the methods that return a dataset."""
    found = inspect.getmembers(datasets.Dataset, inspect.isfunction)
    signatures = {name: inspect.signature(method) for name, method in found if not name.startswith("_")}
    return frozenset(
        name for name, each in signatures.items() if each.return_annotation == "Dataset" and "self" in each.parameters
    )


DATASETS: Final = Registered(apply_method, "tasks", _check)
