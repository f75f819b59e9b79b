"""Which environment tag each group of a run plays: easy ones first, by what was recorded of their success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from roll.data.learned_choices import LearnedChoices
from roll.trajectories.model import TrajectoryGroup

Choice = Literal["in_order", "learning_progress"]


class TagCurriculum:
    """Chooses tags by success. The tag of a group is a function of its number and of what was recorded until then.

    ``in_order`` plays the first tag that is not mastered; what falls below the bound again is played again.
    ``learning_progress`` plays those more often whose success changes, as :class:`roll.data.selecting.ProgressSelector`
    does with prompts.

    Args:
        tags: From easy to hard.
        choose: How.
        mastered_at: Share of episodes that succeed from which on a tag is mastered.
        others: Share of the groups that are of other tags: of those before the first that is not mastered, or, by
            progress, of all in turn.
        seed: Keys the choice, with the number of the group.
    """

    def __init__(self, tags: Sequence[str], choose: Choice, mastered_at: float, others: float, seed: int) -> None:
        self._tags = tuple(tags)
        self._mastered_at = mastered_at
        self._others = others
        self._choices = LearnedChoices(seed, self._in_order if choose == "in_order" else self._by_progress)

    def tag_at(self, number: int) -> str:
        """Return the tag of the group of a number, the same whenever it is asked for."""
        return self._tags[self._choices.at(number)]

    @property
    def stage(self) -> int:
        """Number of the first tag, from 0, that is not mastered; of the last one where all are."""
        for stage in range(len(self._tags) - 1):
            success = self._choices.success(stage)
            if success is None or success < self._mastered_at:
                return stage
        return len(self._tags) - 1

    def learned(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Take note of a step's groups; return the stage that follows from them, and the recorded success of tags."""
        found: dict[str, list[bool]] = defaultdict(list)
        for group in groups:
            if not group.is_answers:
                found[group.tag] += [each.success for each in group.trajectories if not each.status.is_error]
        metrics: dict[str, float] = {}
        for which, tag in enumerate(self._tags):
            if found[tag]:
                self._choices.learned(which, sum(found[tag]) / len(found[tag]))
            success = self._choices.success(which)
            if success is not None:
                metrics[f"curriculum/{tag}"] = success
        return {"curriculum/stage": float(self.stage), **metrics}

    def state_dict(self, first: int) -> dict[str, Any]:
        """Return what a checkpoint remembers of a run that needs no group before ``first`` any more, as JSON."""
        return {"tags": list(self._tags), **self._choices.state_dict(first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped; with other tags than its run had, begin anew."""
        if list(state["tags"]) == list(self._tags):
            self._choices.load_state_dict(state)

    def _in_order(self, number: int, explores: float, where: float) -> int:
        stage = self.stage
        return int(where * stage) if stage and explores < self._others else stage

    def _by_progress(self, number: int, explores: float, where: float) -> int:
        plain = number % len(self._tags)
        chosen = None if explores < self._others else self._choices.by_progress(self._choices.tried, where)
        return plain if chosen is None else chosen
