"""Which groups may begin, and which of the finished ones a step trains on: the rules, without any waiting.

Notation: ``G`` groups per step, ``C = floor((1 + ratio) · G)`` groups admitted and not yet trained at most, and
``S = ceil((C - G) / G)`` steps that a group may be behind when it is trained.

Why no group is ever staler than ``S``: a group that is admitted while ``t`` steps are trained has at most ``C - 1``
before it. If no step is being trained then, it is at the latest one of the next ``C`` that steps take, so it is trained
on weights of ``t + (C - 1) // G = t + S`` steps. If one is, its ``G`` groups are among those before, and the step after
it is the first that can take others: ``t + 1 + (C - G - 1) // G = t + S`` again. That holds while steps take the oldest
groups; a step takes a younger one in place of a straggler only if it holds for all that are left, which
:meth:`Admission.choose` checks.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from roll.trajectories.model import TrajectoryGroup


class DropReason(StrEnum):
    """Why an admitted group is not trained on."""

    FILTERED = "filtered"
    """It teaches nothing: the filter left it out."""
    FAILED = "failed"
    """Every one of its members broke."""
    STALE = "stale"
    """An engine sampled it with weights older than allowed."""
    LATE = "late"
    """The step went on without it: it had begun more groups than it needs."""
    CANCELLED = "cancelled"
    """The run ended before it was trained."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that is not trained on, and why."""

    number: int
    group: TrajectoryGroup
    reason: DropReason


@dataclass(slots=True)
class _Admitted:
    """A group under way.

    Attributes:
        number: Its number.
        trained: Steps that were trained when it was admitted.
        group: Its trajectories, once finished.
    """

    number: int
    trained: int
    group: TrajectoryGroup | None = None


class Admission:
    """Keeps the books on groups: admitted, finished, taken for a step, trained, dropped.

    Args:
        groups_per_step: Groups of a step.
        ratio: Steps that sampling may run ahead; 0 is synchronous.
        window: How many groups beyond those of a step it may look at to pass over stragglers. ``None``: all that are
            admitted. 0 takes groups strictly in order.
        most: Groups that are tried for one step at most, those that are dropped among them.
        additional: Groups that begin beyond those that a synchronous step needs, so that a replacement is at hand.
            Those that it does not take come again in the next step. It then takes groups strictly in order.
        in_rounds: Whether replacements begin only when nothing runs.
        spare: Groups that a synchronous step begins beyond its own, and goes on without; they do not come again.

    Raises:
        ValueError: If there are additional groups or spare ones and a ratio, or both of them.
    """

    def __init__(
        self,
        groups_per_step: int,
        ratio: float,
        window: int | None,
        most: int,
        additional: int = 0,
        in_rounds: bool = False,
        spare: int = 0,
    ) -> None:
        for name, beyond in (("additional", additional), ("spare", spare)):
            if beyond and ratio:
                raise ValueError(f"{name}={beyond}: with a ratio of {ratio} there are groups ahead already")
        if additional and spare:
            raise ValueError(f"additional={additional}, spare={spare}: groups beyond a step come again or do not")
        self.groups_per_step = groups_per_step
        # Ratios such as 0.7 have no exact binary form; a tiny excess keeps 1.7 · 10 at 17.
        self.capacity = math.floor((1 + ratio) * groups_per_step + 1e-9)
        self.max_staleness = math.ceil((self.capacity - groups_per_step) / groups_per_step)
        self.counts: Counter[str] = Counter()
        self._window = 0 if additional else self.capacity + spare if window is None else window
        self.additional = additional
        self.spare = spare
        self._in_rounds = in_rounds
        self._replacements = most - groups_per_step
        self._live: dict[int, _Admitted] = {}
        self._ready = 0
        self._taken: list[int] = []
        self._fallback: list[Dropped] = []
        self._in_training = False
        self._dropped: list[Dropped] = []
        self._trained = 0
        self._next = 0
        self._again: deque[int] = deque()
        self._order: deque[_Admitted] | None = None
        self._ahead = 0

    @property
    def live(self) -> int:
        """Groups admitted and neither trained nor dropped."""
        return len(self._live) + len(self._taken)

    @property
    def in_training(self) -> bool:
        """Whether groups of a step were taken that is not trained yet."""
        return self._in_training

    @property
    def ready(self) -> int:
        """Finished groups that no step has taken."""
        return self._ready

    @property
    def running(self) -> int:
        """Groups that are not finished."""
        return len(self._live) - self.ready

    @property
    def is_exhausted(self) -> bool:
        """Whether so many groups were dropped for this step that no more are tried."""
        return len(self._dropped) > self._replacements

    @property
    def has_enough(self) -> bool:
        """Whether the step could go on without what is under way."""
        return self.spare > 0 and self._ready >= self.groups_per_step

    def admit(self) -> list[int]:
        """Return the numbers of the groups that begin now."""
        begun = []
        if (self._in_rounds and self.running) or (self.additional and self.choose() is not None) or self.has_enough:
            return []
        # A step that is trained on few groups takes the room of a whole one: the proof above counts on that.
        beyond = self.additional + self.spare
        room = self.capacity + beyond - (self.groups_per_step if self._in_training else 0)
        room -= max(len(self._dropped) - (self._replacements - beyond), 0)
        while len(self._live) < room:
            number = self._again.popleft() if self._again else self._next
            self._next = max(self._next, number + 1)
            self._live[number] = admitted = _Admitted(number, self._trained)
            if self._order is not None:
                self._order.append(admitted)
            begun.append(number)
        self.counts["admitted"] += len(begun)
        return begun

    def finish(self, number: int, group: TrajectoryGroup) -> None:
        """Take note of a group that is worth training on."""
        self._live[number].group = group
        self._ready += 1

    def drop(self, number: int, group: TrajectoryGroup, reason: DropReason) -> None:
        """Take note of a group that is not; another one may begin in its place."""
        self._remove(number)
        self._dropped.append(Dropped(number, group, reason))
        self.counts[reason] += 1

    def choose(self, without_late: bool = False) -> list[int] | None:
        """Return the groups of the next step, ``None`` while it has to wait.

        They are the oldest finished ones. A straggler among the first ``groups_per_step + window`` is passed over if
        the steps to come can take all that is left in time, and of a step that begins spare groups ``without_late``.
        """
        if self._ready < self.groups_per_step and (self.running or not self.is_exhausted):
            return None
        if self._must_wait(without_late):
            return None
        size, everything = self.groups_per_step, list(self._live.values())
        chosen = [each.number for each in everything[: size + self._window] if each.group is not None][:size]
        if len(chosen) < size:
            return chosen if self.is_exhausted and not self.running else None
        if self.additional:
            return chosen
        if self.spare:
            return chosen if without_late or chosen == [each.number for each in everything[:size]] else None
        taken = set(chosen)
        rest = [each for each in everything if each.number not in taken]
        first = self._trained + 1
        in_time = all(first + i // size <= each.trained + self.max_staleness for i, each in enumerate(rest))
        return chosen if in_time else None

    def group(self, number: int) -> TrajectoryGroup:
        """Return the trajectories of a finished group.

        Raises:
            ValueError: It is not finished.
        """
        group = self._live[number].group
        if group is None:
            raise ValueError(f"group {number} is not finished")
        return group

    def take(
        self, chosen: Sequence[int], is_stale: Callable[[TrajectoryGroup], bool]
    ) -> tuple[list[TrajectoryGroup], list[Dropped]]:
        """Give a step its groups; return them in order, and what was dropped since the step before.

        Without any, the step gets filtered ones, which are then no longer counted as dropped.
        """
        dropped, self._dropped = sorted(self._dropped, key=_number), []
        self._in_training = True
        if chosen:
            groups = [self.group(number) for number in chosen]
            self._taken = list(chosen)
            for number in chosen:
                self._remove(number)
            return groups, dropped
        usable = [each for each in dropped if each.reason is DropReason.FILTERED and not is_stale(each.group)]
        usable = usable[: self.groups_per_step]
        self._taken, self._fallback = [each.number for each in usable], usable
        self.counts[DropReason.FILTERED] -= len(usable)
        return [each.group for each in usable], [each for each in dropped if each not in usable]

    def drop_fallback(self) -> list[Dropped]:
        """Drop the filtered groups that :meth:`take` gave a step after all; return them."""
        dropped, self._fallback, self._taken = self._fallback, [], []
        self.counts[DropReason.FILTERED] += len(dropped)
        return dropped

    def take_back(self, last: int) -> list[int]:
        """Let the additional groups behind ``last``, which the step does not need, come again; return those under way.

        Call it before :meth:`take`: what was dropped behind ``last`` is as if it had never begun.
        """
        live = [number for number in self._live if number > last]
        running = [number for number in live if self._live[number].group is None]
        early = [each for each in self._dropped if each.number > last]
        for number in live:
            self._remove(number)
        for each in early:
            self.counts[each.reason] -= 1
        self._dropped = [each for each in self._dropped if each.number <= last]
        self.counts["admitted"] -= len(live) + len(early)
        again = sorted({*self._again, *live, *(each.number for each in early)})
        while again and again[-1] == self._next - 1:
            self._next = again.pop()
        self._again = deque(again)
        return running

    def give_up(self, chosen: Sequence[int]) -> tuple[int, list[int]]:
        """Drop the groups that a step goes on without; return how many, and the numbers of those under way.

        Call it before :meth:`take`.
        """
        kept = set(chosen)
        late = [number for number in self._live if number not in kept]
        running = [number for number in late if self._live[number].group is None]
        for number in late:
            self._remove(number)
        self.counts[DropReason.LATE] += len(late)
        return len(late), running

    def trained(self) -> None:
        """Take note that the groups that were taken are trained, and the weights published."""
        self.counts["trained"] += len(self._taken)
        self._taken, self._fallback, self._in_training = [], [], False
        self._trained += 1

    def cancel(self) -> None:
        """Give up everything that is not trained."""
        self.counts[DropReason.CANCELLED] += self.live
        self._live.clear()
        self._ready, self._taken, self._order = 0, [], None

    def unfinished(self) -> tuple[int, list[int]]:
        """Return the number of the next new group, and the numbers below it that are neither trained nor dropped."""
        return self._next, sorted({*self._live, *self._taken, *self._again})

    def begin_at(self, following: int, again: Iterable[int]) -> None:
        """Go on where another run stopped: first the groups that it did not finish, then those that follow."""
        self._next, self._again = following, deque(sorted(again))

    def _must_wait(self, without_late: bool) -> bool:
        """Return whether the oldest group under way is one that the step cannot pass over, without a look at others.

        Whoever waits for a step asks with every group that ends: a look at all of them each time would cost a job of
        many groups their square.
        """
        oldest = self._oldest_running()
        if oldest is None or self._ahead >= self.groups_per_step:
            return False
        if self.spare:
            return not without_late
        return self._window == 0 or self._trained + 1 > oldest.trained + self.max_staleness

    def _oldest_running(self) -> _Admitted | None:
        """Return the oldest group that is not finished; ``_ahead`` is then how many finished ones are before it."""
        if self._order is None:
            self._order, self._ahead = deque(self._live.values()), 0
        while self._order:
            first = self._order[0]
            if self._live.get(first.number) is first:
                if first.group is None:
                    return first
                self._ahead += 1
            self._order.popleft()
        return None

    def _remove(self, number: int) -> None:
        if self._live.pop(number).group is not None:
            self._ready -= 1
            self._order = None  # it may be one of those that are counted as ahead


def _number(dropped: Dropped) -> int:
    return dropped.number
