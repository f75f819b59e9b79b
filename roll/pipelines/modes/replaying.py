"""``mode: both`` with ``experience``: it learns from what it sampled before, again or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from roll.pipelines.experience.opening import open_replay
from roll.pipelines.experience.replaying import ReplayedGroups
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.store import opened_where_tokens_are
from roll.pipelines.sampling.stream import Groups, Source


class Replaying(Mode):
    """Samples what the store lacks for a step, and takes the rest from what it sampled before."""

    _replayed: ReplayedGroups

    def sources(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Return what is sampled: fewer groups, where some are replayed."""
        keys = self.config.experience
        assert keys is not None, "only what has a store replays"
        # Where another number is learned from than sampled, a step samples as many as ever.
        share = 1.0 if self.config.leased_per_step else keys.fresh_share or 1.0
        return [replace(each, groups_per_step=max(1, round(share * each.groups_per_step))) for each in sources]

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what gives each step groups of now and of before."""
        keys, count = self.config.experience, self.config.groups_per_lease
        assert keys is not None, "only what has a store replays"
        # A smaller lease leaves some for later; a larger one is what is sampled, and for the rest replayed.
        share = keys.fresh_share if count < per_step else per_step / count
        opened = partial(open_replay, keys, self.config.output_dir, share)
        self._replayed = ReplayedGroups(sampled(), partial(opened_where_tokens_are, self.run, opened), count)
        return self._replayed

    def begin(self) -> None:
        """Begin with the store."""
        self._replayed.begin_at(0)

    def saved(self) -> None:
        """Tell the store."""
        self._replayed.saved()
