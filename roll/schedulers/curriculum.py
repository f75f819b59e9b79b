"""Which environment tag each group of a run plays, and levels of which difficulty: easy first, by their success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from roll.data.learned_choices import LearnedChoices
from roll.schedulers.difficulty import Bands
from roll.trajectories.model import TrajectoryGroup

Choice = Literal["in_order", "learning_progress"]


class TagCurriculum:
    """Chooses stages by success: tags, or the bands of difficulty of a tag.

    The stage of a group is a function of its number and of what was recorded until then. ``in_order`` plays the first
    that is not mastered; what falls below the bound again is played again. ``learning_progress`` plays those more often
    whose success changes, as :class:`roll.data.selecting.ProgressSelector` does with prompts.

    Args:
        tags: From easy to hard.
        choose: How.
        mastered_at: Share of episodes that succeed from which on a stage is mastered.
        others: Share of the groups that are of other stages: of those before the first that is not mastered, or, by
            progress, of all in turn.
        seed: Keys the choice, with the number of the group.
        bands: The stages of each tag.
    """

    def __init__(
        self, tags: Sequence[str], choose: Choice, mastered_at: float, others: float, seed: int, bands: Bands
    ) -> None:
        self._stages = tuple(band for tag in tags for band in bands.names(tag))
        self._bands = bands
        self._mastered_at = mastered_at
        self._others = others
        self._choices = LearnedChoices(seed, self._in_order if choose == "in_order" else self._by_progress)

    def level_at(self, number: int) -> tuple[str, int]:
        """Return tag and seed of the group of a number, the same whenever it is asked for.

        Raises:
            NoLevelError: Its tag has no level that is so difficult.
        """
        return self._bands.level(self._stages[self._choices.at(number)], number)

    @property
    def stage(self) -> int:
        """Number of the first stage, from 0, that is not mastered; of the last one where all are."""
        for stage in range(len(self._stages) - 1):
            success = self._choices.success(stage)
            if success is None or success < self._mastered_at:
                return stage
        return len(self._stages) - 1

    def learned(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Take note of a step's groups; return the stage that follows from them, and the recorded success of all."""
        found: dict[str, list[bool]] = defaultdict(list)
        for group in groups:
            if not group.is_answers:
                found[self._bands.of(group)] += [
                    each.success for each in group.trajectories if not each.status.is_error
                ]
        metrics: dict[str, float] = {}
        for which, stage in enumerate(self._stages):
            if found[stage]:
                self._choices.learned(which, sum(found[stage]) / len(found[stage]))
            success = self._choices.success(which)
            if success is not None:
                metrics[f"curriculum/{stage}"] = success
        return {"curriculum/stage": float(self.stage), **metrics}

    def state_dict(self, first: int) -> dict[str, Any]:
        """Return what a checkpoint remembers of a run that needs no group before ``first`` any more, as JSON."""
        return {"tags": list(self._stages), **self._choices.state_dict(first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped; with other stages than its run had, begin anew."""
        if list(state["tags"]) == list(self._stages):
            self._choices.load_state_dict(state)

    def _in_order(self, number: int, explores: float, where: float) -> int:
        stage = self.stage
        return int(where * stage) if stage and explores < self._others else stage

    def _by_progress(self, number: int, explores: float, where: float) -> int:
        plain = number % len(self._stages)
        chosen = None if explores < self._others else self._choices.by_progress(self._choices.tried, where)
        return plain if chosen is None else chosen
