"""Plain functions as verifiers: ours ``(request, **options)`` and verl's ``(data_source, solution_str, …)``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.worker_processes import WorkerCallError, WorkerDiedError, WorkerProcesses

_VERL_PARAMETERS: Final = ("data_source", "solution_str", "ground_truth", "extra_info")


class FunctionVerifier:
    """Grades with a function.

    Args:
        function: ``(request, **options)``, or verl's ``(data_source, solution_str, ground_truth, extra_info=None,
            **options)``, which is recognised by a parameter named ``solution_str``. A coroutine function is awaited,
            any other is called in a process that can be killed. It returns a number, a bool, a
            :class:`~roll.rewards.base.Verdict`, or a mapping with ``score``, whose other numbers become metrics.
        options: Keyword arguments of every call.
        is_quick: Call it in the event loop: it takes microseconds and never hangs.
        processes: Most processes that call it; 0 is one per processor, 2 to 8.

    Raises:
        ValueError: The function cannot be called like this, or cannot be sent to a process.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any] | None = None,
        *,
        is_quick: bool = False,
        processes: int = 0,
    ) -> None:
        self._function = function
        self._options = dict(options or {})
        self._name = getattr(function, "__name__", type(function).__name__)
        self._parameters = inspect.signature(function).parameters
        self._is_verl = "solution_str" in self._parameters
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - the method is wanted, not whether there is one
        )
        self._check_call()
        self._workers: WorkerProcesses | None = None
        if not (self._is_async or is_quick):
            try:
                self._workers = WorkerProcesses(_Grader(function, self._name), processes)
            except ValueError as error:
                raise ValueError(f"{self._name}: {error}") from error

    def _check_call(self) -> None:
        request = RewardRequest(messages=[], response="")
        positional, keywords = self._arguments(request)
        try:
            inspect.signature(self._function).bind(*positional, **keywords)
        except TypeError as error:
            wanted = (
                "(data_source, solution_str, ground_truth, extra_info=None, …)" if self._is_verl else "(request, …)"
            )
            raise ValueError(
                f"{self._name}{inspect.signature(self._function)} cannot be called as {wanted}: {error}."
            ) from error

    def _arguments(self, request: RewardRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._is_verl:
            return (request,), self._options
        extra = request.row.get("extra_info")
        values = {
            "data_source": request.row.get("data_source", request.tag),
            "solution_str": request.response,
            "ground_truth": request.ground_truth,
            "extra_info": extra if isinstance(extra, Mapping) else dict(request.row),
        }
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in self._parameters.values())
        wanted = [name for name in _VERL_PARAMETERS if takes_any or name in self._parameters]
        return (), {**{name: values[name] for name in wanted}, **self._options}

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Call the function; what one in this process raises is left to the rubric."""
        positional, keywords = self._arguments(request)
        if self._workers is None:
            value = self._function(*positional, **keywords)
            return verdict_from(await value if self._is_async else value, self._name)
        try:
            score, metrics, error = await self._workers.call(positional, keywords)
        except (WorkerCallError, WorkerDiedError) as failure:
            return Verdict(None, error=f"{self._name}: {failure}")
        return Verdict(score, metrics, error)

    async def close(self) -> None:
        """End the processes."""
        if self._workers is not None:
            await self._workers.close()


class _Grader:
    """What a process calls: the function, and its value as plain numbers."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self._name = name

    def __call__(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        verdict = verdict_from(self.function(*positional, **keywords), self._name)
        return verdict.score, {name: float(value) for name, value in verdict.metrics.items()}, verdict.error


def verdict_from(value: Any, source: str) -> Verdict:
    """Return what a grader returned as a verdict.

    Args:
        value: A number or bool, a :class:`Verdict`, a mapping with ``score`` (its other numbers become metrics), or
            ``None`` for "cannot be graded".
        source: Who returned it, for messages.

    Raises:
        TypeError: It is none of these.
        ValueError: The score is not finite, or the mapping has none.
    """
    if isinstance(value, Verdict):
        verdict = value
    elif isinstance(value, Mapping):
        if "score" not in value:
            raise ValueError(f"{source} returned a mapping without 'score'; it has: {', '.join(map(str, value))}")
        metrics = {
            str(name): float(entry) for name, entry in value.items() if name != "score" and _number(entry) is not None
        }
        score = None if value["score"] is None else _score(value["score"], source)
        verdict = Verdict(score, metrics, str(value["error"]) if value.get("error") else None)
    elif value is None:
        verdict = Verdict(None)
    else:
        verdict = Verdict(_score(value, source))
    if verdict.score is None and verdict.error is None:
        return Verdict(None, verdict.metrics, f"{source} returned no score")
    if verdict.score is not None:
        return Verdict(_score(verdict.score, source), verdict.metrics, verdict.error)
    return verdict


def _score(value: Any, source: str) -> float:
    number = _number(value)
    if number is None:
        raise TypeError(f"{source} returned {value!r} ({type(value).__name__}); a score must be a number")
    if not math.isfinite(number):
        raise ValueError(f"{source} returned {number}; a score must be finite")
    return number


def _number(value: Any) -> float | None:
    """Return a Python, numpy or torch scalar as a float; ``None`` for anything else, text included."""
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
