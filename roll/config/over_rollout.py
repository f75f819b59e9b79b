"""Steps that begin more groups than they train on and go on without the latest: the keys, and what they contradict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.errors import Problem


class OverRollout(ConfigModel):
    """Groups that a synchronous step begins beyond its own, and goes on without."""

    ratio: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of the groups begun that a step goes on without, the latest ones, so that it need not wait "
        "for them: it begins groups / (1 − ratio), rounded down, of each tag. Biased toward what ends soon (short "
        "answers, easy tasks, early failures; docs/async_rollouts.md says how far), and a run then depends on timing: "
        "it is not reproducible.",
    )
    wait_after_min: Annotated[float, Field(ge=0)] = Field(
        30.0,
        description="Seconds that it still waits when enough are finished. It takes the oldest that are finished then, "
        "so a longer wait is less biased.",
    )

    def spare(self, groups: int) -> int:
        """Return how many groups are begun beyond so many; never a larger share than ``ratio``."""
        # Ratios such as 0.1 have no exact binary form; a tiny excess keeps 9 / 0.9 at 10.
        return math.floor(groups * self.ratio / (1 - self.ratio) + 1e-9)


class HasOverRollout(Protocol):
    """What the keys are judged by."""

    @property
    def over_rollout(self) -> OverRollout:
        """The keys."""
        ...

    @property
    def async_generation_ratio(self) -> float:
        """How far sampling runs ahead."""
        ...

    @property
    def is_use_additional_prompts(self) -> bool:
        """Whether prompts are begun that may be needed, and come again."""
        ...

    @property
    def generate_opt_level(self) -> Any:
        """0 where responses are graded when all of them are there."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether the same seed is to give the same run."""
        ...

    @property
    def learns_from_store(self) -> bool:
        """Whether nothing is sampled."""
        ...

    @property
    def groups_by_source(self) -> Mapping[str, int]:
        """Groups of a training step, by what they are of."""
        ...


def over_rollout_problems(config: HasOverRollout) -> Iterator[Problem]:
    """Yield what contradicts a step that goes on without its latest groups."""
    ratio, path = config.over_rollout.ratio, "over_rollout.ratio"
    if ratio == 0 or config.learns_from_store:
        return
    if config.async_generation_ratio > 0:
        message = "with async_generation_ratio above 0 the latest groups are trained in a later step, and none is lost."
        yield Problem(path, message, "leave it out, or set async_generation_ratio: 0.", ratio)
    if config.is_use_additional_prompts:
        message = "groups begun beyond a step come again (is_use_additional_prompts), or do not (over_rollout)."
        yield Problem("is_use_additional_prompts", message, "leave one of them out.", True)
    if config.generate_opt_level == 0:
        message = "responses are graded when all of them are there, so the step waits for the latest."
        yield Problem("generate_opt_level", message, "set it to 1, or leave over_rollout out.", 0)


def over_rollout_cautions(config: HasOverRollout) -> Iterator[str]:
    """Yield where it does nothing, and what it makes of a run that should be reproducible."""
    over = config.over_rollout
    if over.ratio == 0 or config.learns_from_store:
        return
    few = {name: groups for name, groups in config.groups_by_source.items() if over.spare(groups) == 0}
    if few:
        which = ", ".join(f"{name} {groups}" for name, groups in few.items())
        fewest = min(few.values())
        yield (
            f"over_rollout.ratio: {over.ratio:g} is less than one of the groups of a step ({which}), so none is begun "
            f"beyond them. Set it to at least {math.ceil(100 / (fewest + 1)) / 100:g}, or leave it out."
        )
    if len(few) < len(config.groups_by_source) and config.deterministic:
        yield (
            "over_rollout.ratio: which groups are late depends on timing, so the same seed does not give the same run. "
            "Set deterministic: false, which also samples faster, or leave it out."
        )
