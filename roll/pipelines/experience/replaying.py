"""A store inside one program: a step is given groups that are sampled for it, and some that were sampled before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from roll.experience.base import ExperienceStore, Lease
from roll.experience.errors import StoreError
from roll.pipelines.experience.exploring import whole
from roll.pipelines.sampling.stream import Groups
from roll.schedulers.group_stream import OnProgress, StepGroups
from roll.schedulers.groups import require_some
from roll.schedulers.staleness import staleness_metrics

Published = TypeVar("Published")

_STATE: Final = "replay"


class ReplayedGroups:
    """Samples groups for a step while its lease of a store lacks some, and keeps them there for later steps.

    The first step is sampled whole. Where a lease is smaller than what is sampled at once, the next ones are given what
    it left, and nothing is sampled for them. The store is the run's own: it is as it was at the checkpoint that the run
    goes on from, so a run that was killed ends as if nothing had happened.

    Args:
        stream: What samples; a step of it has what is sampled at once.
        opened: Opens the store, when the run begins.
        per_step: Groups of a step.
    """

    def __init__(self, stream: Groups, opened: Callable[[], ExperienceStore], per_step: int) -> None:
        self._stream = stream
        self._opened = opened
        self._per_step = per_step
        self._store: ExperienceStore | None = None
        self._leased = 0
        self._dropped = 0

    async def next(self, step: int, version: int, on_progress: OnProgress | None = None) -> StepGroups:
        """Sample what is missing, and return the groups of a step.

        Raises:
            RolloutError: Every group that was sampled broke.
        """
        sampled: list[StepGroups] = []
        while (lease := self._open.lease(self._per_step, step)) is None:
            sampled.append(await self._stream.next(step, version, on_progress))
            require_some(sampled[-1].groups)
            self._open.append(whole(sampled[-1].groups), version)
        self._leased = step
        counts = self._open.counts()
        stale, self._dropped = counts.dropped - self._dropped, counts.dropped
        return _step_groups(lease, sampled, version, counts.fresh, stale)

    def position(self, name: str) -> int:
        """Return the number of the first task of a source that has never begun."""
        return self._stream.position(name)

    def trained(self) -> None:
        """Take note that the step's groups are trained."""
        self._stream.trained()

    async def update(self, publish: Callable[[], Awaitable[Published]]) -> Published:
        """Publish new weights while no group begins."""
        return await self._stream.update(publish)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint remembers: of what samples, and how much the store had and had given out."""
        state = {"step": self._leased, "groups": self._open.counts().groups}
        return {**self._stream.state_dict(), _STATE: state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a checkpoint; a run that did not replay before begins with an empty store.

        Raises:
            StoreError: The store does not have what it had then.
        """
        known = state.get(_STATE, {"step": 0, "groups": 0})
        self._begin(int(known["step"]), int(known["groups"]))
        self._stream.load_state_dict(state)

    def begin_at(self, position: int) -> None:
        """Begin behind so many groups of the whole run, with an empty store."""
        self._begin(0, 0)
        self._stream.begin_at(position)

    def saved(self) -> None:
        """A checkpoint has the steps so far."""
        self._open.commit(self._leased)

    async def close(self) -> None:
        """Stop what is under way, and close the store."""
        await self._stream.close()
        if self._store is not None:
            self._store.close()

    @property
    def _open(self) -> ExperienceStore:
        assert self._store is not None, "a run begins somewhere before its first step"
        return self._store

    def _begin(self, step: int, groups: int) -> None:
        self._store = self._opened()
        there = self._store.counts().groups
        if there < groups:
            raise StoreError(
                f"the store of replayed groups has {there} of the {groups} groups that it had at the checkpoint. Put "
                "back the folder replay of the run, or begin anew from the weights of the checkpoint."
            )
        self._store.rewind(step)
        self._store.keep_first(groups)
        self._leased = step
        self._dropped = self._store.counts().dropped


def _step_groups(lease: Lease, sampled: Sequence[StepGroups], version: int, left: int, too_old: int) -> StepGroups:
    """Return the groups of a step, with what its rollouts report together.

    Args:
        lease: The groups.
        sampled: What was sampled for it.
        version: The weights that are trained.
        left: Groups that no step was given yet.
        too_old: Groups that have become too old since the step before, for this one or the next.
    """
    groups = list(lease.groups)
    replayed = sum(uses > 0 for uses in lease.uses)
    summed, late = Counter[str](), Counter[str]()
    for rollout in sampled:
        late.update(rollout.late)
        summed.update({name: value for name, value in rollout.metrics.items() if "/staleness/" not in name})
    stale = {f"rollout/staleness/{name}": value for name, value in staleness_metrics(groups, version).items()}
    return StepGroups(
        groups,
        dropped=[each for rollout in sampled for each in rollout.dropped],
        is_fallback=any(rollout.is_fallback for rollout in sampled),
        metrics={
            **summed,
            **stale,
            "rollout/groups_replayed": float(replayed),
            "rollout/groups_left": float(left),
            "rollout/groups_stale": summed["rollout/groups_stale"] + float(too_old),
        },
        aborted=sum(rollout.aborted for rollout in sampled),
        late=late,
        notes=[note for rollout in sampled for note in rollout.notes],
        replayed=replayed,
    )
