"""One row of a data set as an answer whose steps have labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.config.errors import FixableError
from roll.config.reward_model_keys import RewardModelKeys
from roll.data.errors import DataError
from roll.data.rows import find_column
from roll.data.supervised_rows import Message, read_said, system_message

_PROMPTS: Final = ("prompt", "question", "instruction")
_STEPS: Final = ("completions", "steps")
_LABELS: Final = ("labels",)


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """An answer in steps.

    Attributes:
        messages: What was asked.
        steps: The steps of the answer.
        labels: Of each step, in [0, 1]: whether it is right, or how likely it leads to a right answer.
    """

    messages: list[Message]
    steps: list[str]
    labels: list[float]


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Which columns of a file hold what."""

    prompt: str
    steps: str
    labels: str
    system: str | None = None

    @classmethod
    def of(cls, keys: RewardModelKeys, columns: Iterable[str], file: str) -> StepColumns:
        """Return the columns that the configuration names, else those with the usual names.

        Raises:
            DataError: A column is not there, or none has a usual name.
        """
        names = sorted(columns)

        def column(key: str, *known: str) -> str:
            found = find_column(keys, key, names, file, *known)
            if found is None:
                message = f"no column {' or '.join(known)} among {', '.join(names) or '(none)'}."
                raise DataError(message, f"name it: {key}. Pairs of answers need supervision: outcome.", file=file)
            return found

        system = find_column(keys, "system_key", names, file)
        return cls(
            column("prompt_key", *_PROMPTS), column("steps_key", *_STEPS), column("labels_key", *_LABELS), system
        )


class StepReader:
    """Reads the rows of one file.

    Args:
        columns: Of the file.
        system_prompt: System message of conversations that have none.
    """

    def __init__(self, columns: StepColumns, system_prompt: str | None) -> None:
        self._columns = columns
        self._system = system_prompt

    def read(self, row: Mapping[str, Any]) -> LabelledSteps:
        """Return the answer of ``row``.

        Raises:
            FixableError: If the row cannot be used.
        """
        columns = self._columns
        steps, labels = row.get(columns.steps), row.get(columns.labels)
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
            raise FixableError(f"{columns.steps!r} has no steps.", "write a list of texts, one for each step.")
        if not isinstance(labels, list) or len(labels) != len(steps):
            count = len(labels) if isinstance(labels, list) else "no"
            raise FixableError(f"{len(steps)} steps have {count} labels.", "write a list with a label for each step.")
        asked, _ = read_said(row, columns.prompt, "user")
        messages = [*system_message(row, columns.system, self._system, asked), *asked]
        return LabelledSteps(messages, list(steps), [_label(each, columns.labels) for each in labels])


def _label(value: Any, column: str) -> float:
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        return float(value)
    fix = "write true or false, or how likely the step leads to a right answer, from 0 to 1."
    raise FixableError(f"{column!r} holds {value!r}.", fix)
