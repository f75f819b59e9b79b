"""What an experience store promises, whatever keeps its groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from roll.experience.priorities import LEAST_USED, Priority
from roll.experience.reviewing import Decision, Waiting
from roll.trajectories.model import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Reader:
    """Who learns from a store, and how. Each reader has leases of its own.

    Attributes:
        name: Tells readers of one store apart.
        uses: How often a group is given out.
        max_age: How many versions a group may be behind the weights that it trains, which step ``s`` takes from step
            ``s - 1``; older ones are never given out. ``None``: no limit.
        priority: Which groups come first.
        cooldown: Steps that lie between two that have the same group, at least.
        fresh_share: Share of a lease, rounded, that this reader was never given; the others it was, where there are
            so many, else more are fresh. ``None``: as it comes.

    Raises:
        ValueError: ``uses`` is below 1, ``max_age`` or ``cooldown`` below 0, or ``fresh_share`` not in (0, 1].
    """

    name: str = "train"
    uses: int = 1
    max_age: int | None = None
    priority: Priority = LEAST_USED
    cooldown: int = 0
    fresh_share: float | None = None

    def __post_init__(self) -> None:
        if self.uses < 1:
            raise ValueError(
                f"uses must be at least 1, got {self.uses}: a group that is never given out trains nothing"
            )
        if self.max_age is not None and self.max_age < 0:
            raise ValueError(f"max_age must be at least 0, or None for no limit, got {self.max_age}")
        if self.cooldown < 0:
            raise ValueError(f"cooldown must be at least 0 steps, got {self.cooldown}")
        if self.fresh_share is not None and not 0 < self.fresh_share <= 1:
            raise ValueError(f"fresh_share must be above 0 and at most 1, or None, got {self.fresh_share}")

    def oldest(self, step: int) -> int | None:
        """Return the oldest policy version that ``step`` may train on; ``None`` without a limit."""
        return None if self.max_age is None else step - 1 - self.max_age

    def fresh_of(self, count: int) -> int:
        """Return how many of ``count`` groups are fresh at least: their share, and one."""
        return 0 if self.fresh_share is None else max(1, round(self.fresh_share * count))


@dataclass(frozen=True, slots=True)
class Lease:
    """The groups that one step trains on.

    Attributes:
        step: The step.
        numbers: The groups' numbers in the store, in the order in which they are trained.
        groups: The groups themselves.
        policy_version: Of each group the version that it was appended with.
        uses: How often the reader was given each before; 0 for a fresh one.
    """

    step: int
    numbers: tuple[int, ...]
    groups: tuple[TrajectoryGroup, ...]
    policy_version: tuple[int, ...]
    uses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """How a store stands for one reader, before its next step.

    With ``uses`` 1, ``available``, ``leased``, ``trained``, ``dropped``, ``waiting`` and ``rejected`` are all
    ``groups`` together.

    Attributes:
        groups: All groups in the store.
        available: Groups that can be given out.
        fresh: Those of them that never were.
        leased: How often groups were given out to steps that are not in a checkpoint yet.
        trained: How often groups were given out to steps that are.
        dropped: Groups that have become too old before they were given out as often as they might have been.
        waiting: Groups that wait until a person has looked at them, and are not too old.
        rejected: Groups that a person has rejected.
        lost: Groups that were there and are gone with the machine, or the process, in whose memory they lay.
    """

    groups: int
    available: int
    fresh: int
    leased: int
    trained: int
    dropped: int
    waiting: int = 0
    rejected: int = 0
    lost: int = 0


@runtime_checkable
class KeepsFiles(Protocol):
    """A store whose groups lie in files of trajectories, which others may have too: none is written twice."""

    def append_file(
        self,
        file: Path,
        groups: Sequence[TrajectoryGroup],
        policy_version: int,
        kept: Collection[str],
        prefix: str = "",
    ) -> int:
        """Keep groups that lie in a file already; returns how many were new.

        Raises:
            OSError: The file cannot be linked.
        """
        ...

    def file_of(self, lease: Lease) -> Path | None:
        """Return the file that has exactly the members of a lease, in its order."""
        ...


class ExperienceStore(Protocol):
    """Groups of trajectories between what samples and what learns.

    It has no ``state_dict``: its state outlives the program, which only remembers where it was. Who learns remembers
    its last step. Beginning again there, it asks for the next one, and is given the same groups as before, or
    :meth:`rewind` makes other leases of them. Who alone fills the store remembers how many groups there were, and
    :meth:`keep_first` forgets what it will sample again; where several fill it, the ids of groups tell what is there
    already. So a checkpoint has two numbers, however much is in the store, and a store that is further than a
    checkpoint is no error.
    """

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups; all of one call, or none.

        A group that waits for a person (``TrajectoryGroup.waits``) is not given out before :meth:`decide` has approved
        it. A group whose id is there already is not kept again. When this returns, the groups outlive the process,
        where the store is one that can. It also takes back :meth:`finish`.

        Args:
            groups: The groups.
            policy_version: The weights that sampled them, the oldest where there are several.

        Returns:
            How many were new.
        """

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups that a step trains on.

        The reader's priority says which come first; of equal ones those that were given out least often, and of these
        the ones that were appended first. A step that has its groups gets the same again.

        Args:
            count: How many groups.
            step: The step, later than all that have theirs.

        Returns:
            The groups, or ``None`` while fewer than ``count`` can be given out, or too few fresh ones. Where nothing
            more will come is to be asked before (:attr:`finished`): afterwards, the last groups may have come in
            between.

        Raises:
            ValueError: ``count`` is below 1, the step has another number of groups, or a later one has its groups
                already; :meth:`rewind` first.
        """

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait until a person has looked at them, in the order in which they came."""

    def look(self, group_id: str) -> TrajectoryGroup:
        """Return a group that waits, or that was decided about, as it was appended.

        Raises:
            ReviewError: There is none of this id, or it never waited.
        """

    def decide(self, group_id: str, decision: Decision) -> None:
        """Take note of what a person decided about a group that waits.

        It may be decided again until the group is given out, which is what makes a lease that is asked for again the
        same.

        Raises:
            ReviewError: There is none of this id, it never waited, or it was given out.
            ValueError: There is not one score for each member.
        """

    def commit(self, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""

    def rewind(self, step: int) -> None:
        """Forget the leases of all steps after this one, for a trainer that begins again there."""

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``, for a run that alone fills the store and begins again there.

        Every reader also forgets its leases from the first one on that has one of them.
        """

    def finish(self) -> None:
        """Take note that nothing more will be appended."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will be appended."""

    def counts(self) -> StoreCounts:
        """Return how the store stands for its reader."""

    def close(self) -> None:
        """Let go of files. What was appended and leased stays."""
