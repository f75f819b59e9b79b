"""The record that travels from data sets to the RLVR pipeline, and what a source of prompts must offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll.generation import Picture


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem to answer.

    Attributes:
        key: Names the row for good: ``<file name>:<row number>``; the same in every epoch.
        domain: Which rubric grades it, and by which share it is drawn.
        tag: The row's own label (its source), a finer division for metrics.
        messages: The conversation up to the response (``role``, ``content``), system prompt included.
        prompt_ids: The same as tokens, generation prompt included.
        ground_truth: The right answer, ``None`` where the row has none.
        row: Every column of the row, as plain values; without the one with pictures.
        pictures: What placeholders among ``prompt_ids`` stand for, in the order of their places.
    """

    key: str
    domain: str
    tag: str
    messages: list[dict[str, str]]
    prompt_ids: list[int]
    ground_truth: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()


def first_rows(prompts: Sequence[Prompt]) -> dict[tuple[int, ...], int]:
    """Return the first row of each prompt, by its tokens."""
    return {tuple(prompts[row].prompt_ids): row for row in reversed(range(len(prompts)))}


@dataclass(frozen=True, slots=True)
class PromptPlace:
    """Which prompt stands at a position, without its text and tokens.

    Attributes:
        row: Its number in the table of prompts.
        key: Names the row for good, as :attr:`Prompt.key` does.
        domain: Which rubric grades it.
        tag: The row's own label.
    """

    row: int
    key: str
    domain: str
    tag: str


class PromptSource(Protocol):
    """Prompts in an endless, seeded order."""

    def __len__(self) -> int:
        """Return the number of different prompts."""
        ...

    def at(self, position: int) -> Prompt:
        """Return the prompt at ``position`` (0, 1, 2, …): a pure function of seed and position, epochs included."""
        ...
