"""Sampling that an engine cannot do with exact log-probs: said before a run begins, and of every request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from roll.generation import SamplingParams


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sampling parameter that an engine does not have.

    Attributes:
        key: Its name.
        message: What is wrong.
        fix: What to do.
    """

    key: str
    message: str
    fix: str


def all_but(*able: str) -> Callable[[SamplingParams], Iterator[Refusal]]:
    """Return what refuses every parameter of sampling that an engine does not name, where it is not at its default."""

    def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
        for key, default in asdict(SamplingParams()).items():
            if key not in able and getattr(sampling, key) != default:
                yield Refusal(key, f"this engine has no {key}", "leave it out, or use strategy hf_infer")

    return refusals
