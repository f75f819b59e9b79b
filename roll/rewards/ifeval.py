"""Whether a response follows the instructions that its row lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from roll.rewards.answers import after_thinking
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.ifeval_rows import followed
from roll.rewards.instructions import ConstraintError, satisfied
from roll.rewards.registry import register_verifier, row_name
from roll.rewards.worker_processes import WorkerCallError, WorkerDiedError, WorkerProcesses

_PACKAGES: Final = ("langdetect", "punkt")
_AT_ONCE: Final = 4000
"""Characters up to which a response is checked in the event loop.

Expressions can take time in proportion to the square of a text: longer ones are checked where that can be stopped.
"""


@register_verifier("ifeval")
class Ifeval:
    """The share of a row's constraints that the response satisfies.

    Args:
        strict: Score 1 if all are satisfied and 0 otherwise.
        column: Column with the constraints, ``[{"type": "word_count", "max": 50}, …]``, also as JSON text. A row
            without it may have ``instruction_id_list`` and ``kwargs`` as the IFEval data set.
        keep_thinking: Check the whole response, not only what follows ``</think>``.

    Raises:
        ValueError: The packages of the extra ``ifeval`` are not installed.
    """

    def __init__(self, strict: bool = False, column: str = "constraints", keep_thinking: bool = False) -> None:
        missing = [package for package in _PACKAGES if find_spec(package) is None]
        if missing:
            raise ValueError(
                f"it needs the packages of an extra ({', '.join(missing)}): pip install 'roll-rl[ifeval]'."
            )
        self._strict = strict
        self._column = column
        self._keep_thinking = keep_thinking
        self._processes = WorkerProcesses(checked)

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Check every constraint."""
        text = request.response if self._keep_thinking else after_thinking(request.response)
        try:
            constraints = self._constraints(request.row)
            if len(text) <= _AT_ONCE:
                kept = checked(constraints, text)
            else:
                kept = await self._processes.call(constraints, text)
        except (ConstraintError, WorkerCallError, WorkerDiedError) as error:
            return Verdict(None, error=f"{row_name(request)}: {error}")
        share = sum(kept) / len(kept)
        return Verdict(float(share == 1.0) if self._strict else share, {"share": share, "all": float(share == 1.0)})

    async def close(self) -> None:
        """End the processes."""
        await self._processes.close()

    def _constraints(self, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        listed = _read(row.get(self._column))
        if listed is None and row.get("instruction_id_list") is not None:
            names = _read(row["instruction_id_list"]) or []
            arguments = _read(row.get("kwargs")) or [{}] * len(names)
            if len(arguments) != len(names):
                raise ConstraintError(f"{len(names)} instructions with {len(arguments)} kwargs")
            if not names:
                raise ConstraintError("instruction_id_list is empty")
            return [{"instruction": name, "kwargs": given} for name, given in zip(names, arguments, strict=True)]
        if listed is None:
            raise ConstraintError(f"no column {self._column!r}, and no instruction_id_list")
        if not isinstance(listed, Sequence) or not listed or not all(isinstance(each, Mapping) for each in listed):
            raise ConstraintError(f"{self._column} must be a list of mappings with `type`, and not empty")
        return list(listed)


def checked(constraints: Sequence[Mapping[str, Any]], text: str) -> list[bool]:
    """Return which constraints ``text`` satisfies; nothing satisfies one with no text."""
    return [bool(text.strip()) and _kept(constraint, text) for constraint in constraints]


def _kept(constraint: Mapping[str, Any], text: str) -> bool:
    if "instruction" in constraint:
        return followed(constraint["instruction"], constraint["kwargs"], text)
    return satisfied(constraint, text)


def _read(value: Any) -> Any:
    """Return a column that may be JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ConstraintError(f"constraints are no JSON: {error}") from error
